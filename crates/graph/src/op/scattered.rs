//! The ways back through a convolution whose gradient is mostly zeros, as it is behind a pool that takes the largest: of
//! every window one number is left. Those are listed filter by filter, and each adds its run of image or weight where it
//! belongs; nothing is unfolded, and the work is that of the numbers that are left.

use super::direct::Direct;
use crate::kernel::scattered::{Term, collect, spread, term};

/// A convolution over whole images, see [`Direct`].
pub struct Scattered(Direct);

impl Scattered {
    /// If the convolution can be done this way.
    pub fn new(direct: Option<Direct>) -> Option<Scattered> {
        direct.filter(|direct| direct.image.iter().product::<usize>() <= u32::MAX as usize).map(Scattered)
    }

    fn lines(&self) -> usize {
        self.0.places[0] * self.0.places[1]
    }

    /// How much room the list of an image takes.
    pub fn room(&self) -> usize {
        self.0.filters * (1 + 2 * self.lines())
    }

    /// Adds the gradient of the weight, summed over some images.
    pub fn weight_gradient(&self, sum: &mut [f32], delta: &[f32], images: &[f32], room: &mut [f32]) {
        let (run, image) = (self.0.run(), self.0.image.iter().product::<usize>());
        let deltas = delta.chunks_exact((self.lines() * self.0.filters).max(1));
        for (delta, image) in deltas.zip(images.chunks_exact(image.max(1))) {
            let filters = sum.chunks_exact_mut(self.0.window.size[0] * run);
            for (terms, filter) in self.list(delta, room).zip(filters) {
                for (y, sum) in filter.chunks_exact_mut(run).enumerate() {
                    collect(sum, &image[self.0.begin(0, 0, y)..], terms);
                }
            }
        }
    }

    /// Adds the gradient of some images.
    pub fn input_gradient(&self, images: &mut [f32], delta: &[f32], weight: &[f32], room: &mut [f32]) {
        let (run, image) = (self.0.run(), self.0.image.iter().product::<usize>());
        let deltas = delta.chunks_exact((self.lines() * self.0.filters).max(1));
        for (delta, image) in deltas.zip(images.chunks_exact_mut(image.max(1))) {
            let filters = weight.chunks_exact(self.0.window.size[0] * run);
            for (terms, filter) in self.list(delta, room).zip(filters) {
                for (y, values) in filter.chunks_exact(run).enumerate() {
                    spread(&mut image[self.0.begin(0, 0, y)..], values, terms);
                }
            }
        }
    }

    /// Lists the numbers of an image's gradient that are not zero, for each filter where its window begins in the image.
    fn list<'a>(&self, delta: &[f32], room: &'a mut [f32]) -> impl Iterator<Item = &'a [Term]> {
        let (lines, filters) = (self.lines(), self.0.filters);
        let (counts, terms) = room[..self.room()].split_at_mut(filters);
        let terms = terms.as_chunks_mut::<2>().0;
        counts.fill(0.0);
        for (place, line) in delta.chunks_exact(filters.max(1)).enumerate() {
            let (down, across) = (place / self.0.places[1], place % self.0.places[1]);
            let begin = self.0.begin(0, down, 0) + across * self.0.step();
            for ((filter, delta), count) in line.iter().enumerate().zip(counts.iter_mut()) {
                // Written in any case and counted only if it is there: no branch to guess wrong.
                let next = count.to_bits();
                terms[filter * lines + next as usize] = term(begin, *delta);
                *count = f32::from_bits(next + u32::from(*delta != 0.0));
            }
        }
        let (counts, terms) = (&*counts, &*terms);
        counts
            .iter()
            .zip(terms.chunks_exact(lines.max(1)))
            .map(|(count, terms)| &terms[..count.to_bits() as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::window::Window;
    use thalweg_core::Rng;

    /// Both gradients against their definition: images of 6x7 with 16 channels, windows of 3x2 that move by 2 and 1.
    #[test]
    fn zeros_are_left_out_and_nothing_else() {
        let (image, places, filters, images) = ([6, 7, 16], [2, 6], 5, 3);
        let window = Window { stride: [2, 1], ..Window::new([3, 2]) };
        let scattered = Scattered::new(Direct::new(image, &window, places, filters, 1)).unwrap();
        let mut rng = Rng::keyed(1, "scattered", &[]);
        let mut numbers = |count: usize| (0..count).map(|_| rng.normal()).collect::<Vec<f32>>();
        let (pixels, weight) = (numbers(images * 6 * 7 * 16), numbers(filters * 3 * 2 * 16));
        let mut delta = numbers(images * 2 * 6 * filters);
        delta.iter_mut().enumerate().filter(|(index, _)| index % 4 != 1).for_each(|(_, delta)| *delta = 0.0);
        let (mut of_weight, mut of_pixels) = (vec![0.0; weight.len()], vec![0.0; pixels.len()]);
        let mut room = vec![f32::NAN; scattered.room()];
        scattered.weight_gradient(&mut of_weight, &delta, &pixels, &mut room);
        scattered.input_gradient(&mut of_pixels, &delta, &weight, &mut room);
        let (mut weight_sums, mut pixel_sums) = (vec![0.0; weight.len()], vec![0.0; pixels.len()]);
        for (index, delta) in delta.iter().enumerate() {
            let (filter, place) = (index % filters, index / filters % 12);
            let (number, down, across) = (index / filters / 12, place / 6, place % 6);
            for under in 0..3 * 2 * 16 {
                let (y, x, channel) = (under / 32, under / 16 % 2, under % 16);
                let pixel = ((number * 6 + down * 2 + y) * 7 + across + x) * 16 + channel;
                weight_sums[filter * 96 + under] += delta * pixels[pixel];
                pixel_sums[pixel] += delta * weight[filter * 96 + under];
            }
        }
        for (got, expected) in [(of_weight, weight_sums), (of_pixels, pixel_sums)] {
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{got} for {expected}");
            }
        }
    }

    #[test]
    fn a_number_that_is_none_is_not_left_out() {
        let direct = Direct::new([1, 2, 16], &Window::new([1, 2]), [1, 1], 1, 1);
        let scattered = Scattered::new(direct).unwrap();
        let (mut sum, mut room) = (vec![0.0; 32], vec![0.0; scattered.room()]);
        scattered.weight_gradient(&mut sum, &[f32::NAN], &[1.0; 32], &mut room);
        assert!(sum.iter().all(|sum| sum.is_nan()));
    }
}
