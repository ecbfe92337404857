//! Image to columns (im2col) and back: the elements under each position of a window as one row of a matrix.

use super::dispatch::dispatch;
use super::short_copy::short_copy;
use crate::op::window::Window;

/// Calls `each` for every run of elements that is contiguous both in an image and in an unfolded row: with the run's
/// offset in the images (`None` for padding), its offset in the rows, and its length.
#[inline(always)]
fn for_each_run(
    images: usize,
    image: [usize; 3],
    window: &Window,
    output_size: [usize; 2],
    groups: usize,
    group: usize,
    mut each: impl FnMut(Option<usize>, usize, usize),
) {
    let [height, width, channels] = image;
    let group_channels = channels / groups;
    let mut offset = 0;
    for index in 0..images {
        let start = index * height * width * channels;
        for down in 0..output_size[0] {
            for across in 0..output_size[1] {
                // Adjacent points of a window are one run, if all of them are inside the image.
                let first = (across * window.stride[1]).checked_sub(window.padding[1]);
                let joined = first.filter(|first| {
                    groups == 1 && window.dilation[1] == 1 && first + window.size[1] <= width
                });
                for y in 0..window.size[0] {
                    let row = window.input_index(0, down, y, height).map(|y| start + y * width * channels);
                    match (row, joined) {
                        (None, _) => {
                            each(None, offset, window.size[1] * group_channels);
                            offset += window.size[1] * group_channels;
                        }
                        (Some(row), Some(first)) => {
                            each(Some(row + first * channels), offset, window.size[1] * group_channels);
                            offset += window.size[1] * group_channels;
                        }
                        (Some(row), None) => {
                            for x in 0..window.size[1] {
                                let point = window.input_index(1, across, x, width);
                                let start = point.map(|x| row + x * channels + group * group_channels);
                                each(start, offset, group_channels);
                                offset += group_channels;
                            }
                        }
                    }
                }
            }
        }
    }
}

dispatch! {
    /// Writes the elements of a channel group under each window position as a row.
    pub fn unfold(
        unfolded: &mut [f32],
        images: &[f32],
        image: [usize; 3],
        window: &Window,
        output_size: [usize; 2],
        groups: usize,
        group: usize,
    ) {
        let count = images.len() / image.iter().product::<usize>().max(1);
        for_each_run(count, image, window, output_size, groups, group, |from, to, len| {
            let run = &mut unfolded[to..to + len];
            match from {
                None => run.fill(0.0),
                Some(from) => short_copy(run, &images[from..from + len]),
            }
        });
    }
}

dispatch! {
    /// Adds the elements of each row to the points of the images they came from.
    pub fn fold(
        unfolded: &[f32],
        images: &mut [f32],
        image: [usize; 3],
        window: &Window,
        output_size: [usize; 2],
        groups: usize,
        group: usize,
    ) {
        let count = images.len() / image.iter().product::<usize>().max(1);
        for_each_run(count, image, window, output_size, groups, group, |to, from, len| {
            if let Some(to) = to {
                let run = &unfolded[from..from + len];
                images[to..to + len].iter_mut().zip(run).for_each(|(image, value)| *image += value);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_zero_and_folding_counts_overlaps() {
        let window = Window { padding: [1, 1], ..Window::new([3, 3]) };
        let image = [1.0, 2.0, 3.0, 4.0];
        let mut lines = [f32::NAN; 36];
        unfold(&mut lines, &image, [2, 2, 1], &window, [2, 2], 1, 0);
        assert_eq!(lines[..9], [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 3.0, 4.0]);
        assert_eq!(lines[27..], [1.0, 2.0, 0.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
        let mut sum = [0.0; 4];
        fold(&lines, &mut sum, [2, 2, 1], &window, [2, 2], 1, 0);
        assert_eq!(sum, [4.0, 8.0, 12.0, 16.0], "each point is under four window positions");
    }
}
