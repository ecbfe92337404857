//! Windows over images, a whole line of channels at a time.

use super::dispatch::dispatch;
use crate::op::window::Window;

/// Calls `each` with the place of a result (in channels), the place of a point under it, and the point's number.
#[inline(always)]
fn points(window: &Window, image: [usize; 3], rows: usize, mut each: impl FnMut(usize, usize, usize)) {
    let [height, width, channels] = image;
    let Ok([downs, acrosses]) = window.places([height, width]) else { return };
    for row in 0..rows {
        for down in 0..downs {
            for across in 0..acrosses {
                let result = ((row * downs + down) * acrosses + across) * channels;
                for y in 0..window.size[0] {
                    let Some(line) = window.under(0, down, y, height) else { continue };
                    for x in 0..window.size[1] {
                        let Some(point) = window.under(1, across, x, width) else { continue };
                        let point = ((row * height + line) * width + point) * channels;
                        each(result, point, y * window.size[1] + x);
                    }
                }
            }
        }
    }
}

dispatch! {
    /// Adds to each result its points, times `share`.
    pub fn gather(output: &mut [f32], images: &[f32], window: &Window, image: [usize; 3], rows: usize, share: f32) {
        let channels = image[2];
        points(window, image, rows, |result, point, _| {
            let sums = output[result..result + channels].iter_mut();
            sums.zip(&images[point..point + channels]).for_each(|(sum, value)| *sum += share * value);
        });
    }
}

dispatch! {
    /// Adds to each point its results, times `share`.
    pub fn spread(output: &mut [f32], results: &[f32], window: &Window, image: [usize; 3], rows: usize, share: f32) {
        let channels = image[2];
        points(window, image, rows, |result, point, _| {
            let sums = output[point..point + channels].iter_mut();
            sums.zip(&results[result..result + channels]).for_each(|(sum, value)| *sum += share * value);
        });
    }
}

dispatch! {
    /// The largest point of each result.
    pub fn largest(output: &mut [f32], images: &[f32], window: &Window, image: [usize; 3], rows: usize) {
        let channels = image[2];
        points(window, image, rows, |result, point, _| {
            let most = output[result..result + channels].iter_mut();
            for (most, value) in most.zip(&images[point..point + channels]) {
                *most = if *value <= *most { *most } else { *value };
            }
        });
    }
}

dispatch! {
    /// The largest point of each result, and which of the window it is.
    pub fn largest_chosen(
        output: &mut [f32],
        chosen: &mut [f32],
        images: &[f32],
        window: &Window,
        image: [usize; 3],
        rows: usize,
    ) {
        let channels = image[2];
        points(window, image, rows, |result, point, number| {
            let most = output[result..result + channels].iter_mut();
            let chosen = chosen[result..result + channels].iter_mut();
            for ((most, chosen), value) in most.zip(chosen).zip(&images[point..point + channels]) {
                // Asked this way round, a number that is not one wins and stays visible.
                let stays = *value <= *most;
                *most = if stays { *most } else { *value };
                *chosen = if stays { *chosen } else { number as f32 };
            }
        });
    }
}

dispatch! {
    /// Adds each result's gradient to the point that was chosen.
    pub fn give_chosen(
        output: &mut [f32],
        delta: &[f32],
        chosen: &[f32],
        window: &Window,
        image: [usize; 3],
        rows: usize,
    ) {
        let channels = image[2];
        points(window, image, rows, |result, point, number| {
            let delta = delta[result..result + channels].iter();
            let chosen = chosen[result..result + channels].iter();
            let sums = output[point..point + channels].iter_mut();
            for ((sum, delta), chosen) in sums.zip(delta).zip(chosen) {
                *sum += if *chosen == number as f32 { *delta } else { 0.0 };
            }
        });
    }
}
