//! Between images and the numbers under each place of a window.

use super::dispatch::dispatch;
use super::short;
use crate::op::window::Window;

/// Walks over the runs of numbers that lie together both in an image and in an unfolded line: calls `each` with where
/// the run begins in the images (nothing for padding), where in the lines, and how long it is.
#[inline(always)]
fn runs(
    images: usize,
    image: [usize; 3],
    window: &Window,
    places: [usize; 2],
    groups: usize,
    group: usize,
    mut each: impl FnMut(Option<usize>, usize, usize),
) {
    let [height, width, channels] = image;
    let own = channels / groups;
    let mut line = 0;
    for index in 0..images {
        let start = index * height * width * channels;
        for down in 0..places[0] {
            for across in 0..places[1] {
                // Points of a window that lie side by side make one run, if the whole of them lies in the image.
                let first = (across * window.stride[1]).checked_sub(window.padding[1]);
                let joined = first.filter(|first| {
                    groups == 1 && window.dilation[1] == 1 && first + window.size[1] <= width
                });
                for y in 0..window.size[0] {
                    let row = window.under(0, down, y, height).map(|y| start + y * width * channels);
                    match (row, joined) {
                        (None, _) => {
                            each(None, line, window.size[1] * own);
                            line += window.size[1] * own;
                        }
                        (Some(row), Some(first)) => {
                            each(Some(row + first * channels), line, window.size[1] * own);
                            line += window.size[1] * own;
                        }
                        (Some(row), None) => {
                            for x in 0..window.size[1] {
                                let point = window.under(1, across, x, width);
                                each(point.map(|x| row + x * channels + group * own), line, own);
                                line += own;
                            }
                        }
                    }
                }
            }
        }
    }
}

dispatch! {
    /// Writes the numbers of a group under each place as a line.
    pub fn unfold(
        lines: &mut [f32],
        images: &[f32],
        image: [usize; 3],
        window: &Window,
        places: [usize; 2],
        groups: usize,
        group: usize,
    ) {
        let count = images.len() / image.iter().product::<usize>().max(1);
        runs(count, image, window, places, groups, group, |from, to, len| {
            let line = &mut lines[to..to + len];
            match from {
                None => line.fill(0.0),
                Some(from) => short::copy(line, &images[from..from + len]),
            }
        });
    }
}

dispatch! {
    /// Adds each line's numbers to the points of the images they came from.
    pub fn fold(
        lines: &[f32],
        images: &mut [f32],
        image: [usize; 3],
        window: &Window,
        places: [usize; 2],
        groups: usize,
        group: usize,
    ) {
        let count = images.len() / image.iter().product::<usize>().max(1);
        runs(count, image, window, places, groups, group, |to, from, len| {
            if let Some(to) = to {
                let line = &lines[from..from + len];
                images[to..to + len].iter_mut().zip(line).for_each(|(image, line)| *image += line);
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
        assert_eq!(sum, [4.0, 8.0, 12.0, 16.0], "each point lies under four places");
    }
}
