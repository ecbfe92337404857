//! Pooling over images, all channels of a pixel at a time.

use super::dispatch::dispatch;
use super::short_copy::short_copy;
use crate::op::window::Window;

/// Calls `each` for every pixel under every window position: with the offset of the result, the offset of the pixel,
/// and the index of the pixel in its window.
#[inline(always)]
fn for_each_pixel(
    window: &Window,
    image: [usize; 3],
    rows: usize,
    mut each: impl FnMut(usize, usize, usize),
) {
    let [height, width, channels] = image;
    let Ok([out_height, out_width]) = window.output_size([height, width]) else { return };
    for row in 0..rows {
        for down in 0..out_height {
            for across in 0..out_width {
                let result = ((row * out_height + down) * out_width + across) * channels;
                for y in 0..window.size[0] {
                    let Some(in_row) = window.input_index(0, down, y, height) else { continue };
                    for x in 0..window.size[1] {
                        let Some(column) = window.input_index(1, across, x, width) else { continue };
                        let pixel = ((row * height + in_row) * width + column) * channels;
                        each(result, pixel, y * window.size[1] + x);
                    }
                }
            }
        }
    }
}

dispatch! {
    /// Adds the pixels under each window position to its result, times `factor`.
    pub fn mean_pool(output: &mut [f32], images: &[f32], window: &Window, image: [usize; 3], rows: usize, factor: f32) {
        let channels = image[2];
        for_each_pixel(window, image, rows, |result, pixel, _| {
            let sums = output[result..result + channels].iter_mut();
            sums.zip(&images[pixel..pixel + channels]).for_each(|(sum, value)| *sum += factor * value);
        });
    }
}

dispatch! {
    /// Adds the gradient of each result to all pixels of its window, times `factor`.
    pub fn mean_pool_backward(
        output: &mut [f32],
        results: &[f32],
        window: &Window,
        image: [usize; 3],
        rows: usize,
        factor: f32,
    ) {
        let channels = image[2];
        for_each_pixel(window, image, rows, |result, pixel, _| {
            let sums = output[pixel..pixel + channels].iter_mut();
            sums.zip(&results[result..result + channels]).for_each(|(sum, value)| *sum += factor * value);
        });
    }
}

/// Channels that stay in registers while a window is scanned.
const LANES: usize = 16;

/// The current position of a window: row of the batch, down and across. A cursor, not a closure called per result: a
/// closure would be compiled as portable code and called, not inlined into code for the selected instruction set.
struct WindowCursor<'a> {
    window: &'a Window,
    image: [usize; 3],
    output_size: [usize; 2],
    row: usize,
    position: [usize; 2],
}

impl<'a> WindowCursor<'a> {
    /// The first position of the first row; `None` if the window does not fit.
    #[inline(always)]
    fn first(window: &'a Window, image: [usize; 3]) -> Option<WindowCursor<'a>> {
        let output_size = window.output_size([image[0], image[1]]).ok()?;
        Some(WindowCursor { window, image, output_size, row: 0, position: [0; 2] })
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.position[1] += 1;
        if self.position[1] == self.output_size[1] {
            self.position = [self.position[0] + 1, 0];
            if self.position[0] == self.output_size[0] {
                (self.row, self.position) = (self.row + 1, [0; 2]);
            }
        }
    }
}

dispatch! {
    /// Writes the maximum of each window.
    pub fn max_pool(output: &mut [f32], images: &[f32], window: &Window, image: [usize; 3]) {
        let Some(mut cursor) = WindowCursor::first(window, image) else { return };
        for results in output.chunks_exact_mut(image[2].max(1)) {
            for (block, maxima) in results.chunks_mut(LANES).enumerate() {
                let (best, _) = window_max(images, &cursor, block * LANES, maxima.len());
                short_copy(maxima, &best[..maxima.len()]);
            }
            cursor.advance();
        }
    }
}

dispatch! {
    /// Writes the maximum of each window and its index in the window.
    pub fn max_pool_with_indices(
        output: &mut [f32],
        indices: &mut [f32],
        images: &[f32],
        window: &Window,
        image: [usize; 3],
    ) {
        let Some(mut cursor) = WindowCursor::first(window, image) else { return };
        let channels = image[2].max(1);
        for (results, indices) in output.chunks_exact_mut(channels).zip(indices.chunks_exact_mut(channels)) {
            let blocks = results.chunks_mut(LANES).zip(indices.chunks_mut(LANES));
            for (block, (maxima, indices)) in blocks.enumerate() {
                let (best, found) = window_max(images, &cursor, block * LANES, maxima.len());
                short_copy(maxima, &best[..maxima.len()]);
                short_copy(indices, &found[..maxima.len()]);
            }
            cursor.advance();
        }
    }
}

/// The maxima of a few channels under the window, and their indices in the window.
#[inline(always)]
fn window_max(
    images: &[f32],
    cursor: &WindowCursor<'_>,
    begin: usize,
    count: usize,
) -> ([f32; LANES], [f32; LANES]) {
    let ([height, width, channels], window) = (cursor.image, cursor.window);
    let (mut maxima, mut indices) = ([f32::NEG_INFINITY; LANES], [0.0; LANES]);
    for y in 0..window.size[0] {
        let Some(in_row) = window.input_index(0, cursor.position[0], y, height) else { continue };
        for x in 0..window.size[1] {
            let Some(column) = window.input_index(1, cursor.position[1], x, width) else { continue };
            let pixel = ((cursor.row * height + in_row) * width + column) * channels;
            let index = (y * window.size[1] + x) as f32;
            let values = &images[pixel + begin..][..count];
            let mut padded = [0.0; LANES];
            let values = match <&[f32; LANES]>::try_from(values) {
                Ok(values) => values,
                Err(_) => {
                    padded[..count].copy_from_slice(values);
                    &padded
                }
            };
            for lane in 0..LANES {
                // `<=` is false for NaN, which therefore propagates.
                let stays = values[lane] <= maxima[lane];
                maxima[lane] = if stays { maxima[lane] } else { values[lane] };
                indices[lane] = if stays { indices[lane] } else { index };
            }
        }
    }
    (maxima, indices)
}

dispatch! {
    /// Writes the gradient of each result to the pixel of its maximum and 0 to the others, for windows that tile the
    /// image.
    pub fn max_pool_backward_tiled(
        output: &mut [f32],
        delta: &[f32],
        indices: &[f32],
        window: &Window,
        image: [usize; 3],
        rows: usize,
    ) {
        let channels = image[2];
        for_each_pixel(window, image, rows, |result, pixel, index| {
            let delta = delta[result..result + channels].iter();
            let indices = indices[result..result + channels].iter();
            let pixels = output[pixel..pixel + channels].iter_mut();
            for ((pixel, delta), maximum) in pixels.zip(delta).zip(indices) {
                *pixel = if *maximum == index as f32 { *delta } else { 0.0 };
            }
        });
    }
}

dispatch! {
    /// Adds the gradient of each result to the pixel of its maximum.
    pub fn max_pool_backward(
        output: &mut [f32],
        delta: &[f32],
        indices: &[f32],
        window: &Window,
        image: [usize; 3],
        rows: usize,
    ) {
        let channels = image[2];
        for_each_pixel(window, image, rows, |result, pixel, index| {
            let delta = delta[result..result + channels].iter();
            let indices = indices[result..result + channels].iter();
            let sums = output[pixel..pixel + channels].iter_mut();
            for ((sum, delta), maximum) in sums.zip(delta).zip(indices) {
                *sum += if *maximum == index as f32 { *delta } else { 0.0 };
            }
        });
    }
}
