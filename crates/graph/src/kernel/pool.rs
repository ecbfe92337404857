//! Windows over images, a whole line of channels at a time.

use super::dispatch::dispatch;
use super::short;
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

/// Channels that are worked on while they stay in registers.
const LANES: usize = 16;

/// Where a window stands: the row of the batch, and the place. It goes from result to result; a closure called for each
/// of them would be compiled for any machine and called, not inlined into code for this one.
struct Under<'a> {
    window: &'a Window,
    image: [usize; 3],
    places: [usize; 2],
    row: usize,
    place: [usize; 2],
}

impl<'a> Under<'a> {
    /// At the first place of the first row; nothing if the window does not fit.
    #[inline(always)]
    fn first(window: &'a Window, image: [usize; 3]) -> Option<Under<'a>> {
        let places = window.places([image[0], image[1]]).ok()?;
        Some(Under { window, image, places, row: 0, place: [0; 2] })
    }

    /// Goes to the next place, or to the next row.
    #[inline(always)]
    fn advance(&mut self) {
        self.place[1] += 1;
        if self.place[1] == self.places[1] {
            self.place = [self.place[0] + 1, 0];
            if self.place[0] == self.places[0] {
                (self.row, self.place) = (self.row + 1, [0; 2]);
            }
        }
    }
}

dispatch! {
    /// The largest point of each result.
    pub fn largest(output: &mut [f32], images: &[f32], window: &Window, image: [usize; 3]) {
        let Some(mut under) = Under::first(window, image) else { return };
        for results in output.chunks_exact_mut(image[2].max(1)) {
            for (block, most) in results.chunks_mut(LANES).enumerate() {
                let (best, _) = best_of(images, &under, block * LANES, most.len());
                short::copy(most, &best[..most.len()]);
            }
            under.advance();
        }
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
    ) {
        let Some(mut under) = Under::first(window, image) else { return };
        let channels = image[2].max(1);
        for (results, chosen) in output.chunks_exact_mut(channels).zip(chosen.chunks_exact_mut(channels)) {
            let blocks = results.chunks_mut(LANES).zip(chosen.chunks_mut(LANES));
            for (block, (most, chosen)) in blocks.enumerate() {
                let (best, numbers) = best_of(images, &under, block * LANES, most.len());
                short::copy(most, &best[..most.len()]);
                short::copy(chosen, &numbers[..most.len()]);
            }
            under.advance();
        }
    }
}

/// The largest of a few channels under a place, and which points they are.
#[inline(always)]
fn best_of(images: &[f32], under: &Under<'_>, begin: usize, count: usize) -> ([f32; LANES], [f32; LANES]) {
    let ([height, width, channels], window) = (under.image, under.window);
    let (mut most, mut chosen) = ([f32::NEG_INFINITY; LANES], [0.0; LANES]);
    for y in 0..window.size[0] {
        let Some(line) = window.under(0, under.place[0], y, height) else { continue };
        for x in 0..window.size[1] {
            let Some(point) = window.under(1, under.place[1], x, width) else { continue };
            let point = ((under.row * height + line) * width + point) * channels;
            let number = (y * window.size[1] + x) as f32;
            let values = &images[point + begin..][..count];
            let mut whole = [0.0; LANES];
            let values = match <&[f32; LANES]>::try_from(values) {
                Ok(values) => values,
                Err(_) => {
                    whole[..count].copy_from_slice(values);
                    &whole
                }
            };
            for lane in 0..LANES {
                // Asked this way round, a number that is not one wins and stays visible.
                let stays = values[lane] <= most[lane];
                most[lane] = if stays { most[lane] } else { values[lane] };
                chosen[lane] = if stays { chosen[lane] } else { number };
            }
        }
    }
    (most, chosen)
}

dispatch! {
    /// Gives each result's gradient to the point that was chosen, and nothing to the others; windows do not overlap and
    /// leave no point out.
    pub fn hand_chosen(
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
            let points = output[point..point + channels].iter_mut();
            for ((point, delta), chosen) in points.zip(delta).zip(chosen) {
                *point = if *chosen == number as f32 { *delta } else { 0.0 };
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
