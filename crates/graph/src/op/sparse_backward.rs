//! The backward pass of a convolution whose gradient is mostly zeros, as it is behind a max pool, which passes one
//! gradient per window. The nonzeros are listed per filter, and each adds its run of the image or of the weight.
//! Nothing is unfolded, and the cost is proportional to the nonzeros.

use super::direct_convolution::DirectConvolution;
use crate::kernel::sparse_axpy::{Nonzero, gather_axpy, nonzero, scatter_axpy};

/// Has the requirements of [`DirectConvolution`].
pub struct SparseBackward(DirectConvolution);

impl SparseBackward {
    /// `None` if the convolution does not meet the requirements.
    pub fn new(direct: Option<DirectConvolution>) -> Option<SparseBackward> {
        direct
            .filter(|direct| direct.image.iter().product::<usize>() <= u32::MAX as usize)
            .map(SparseBackward)
    }

    fn positions(&self) -> usize {
        self.0.output_size[0] * self.0.output_size[1]
    }

    /// Scratch elements: the nonzeros of one image.
    pub fn scratch_len(&self) -> usize {
        self.0.filters * (1 + 2 * self.positions())
    }

    /// Adds the gradient of the weight over some images to `sum`.
    pub fn weight_gradient(&self, sum: &mut [f32], delta: &[f32], images: &[f32], scratch: &mut [f32]) {
        let (run, image) = (self.0.run_len(), self.0.image.iter().product::<usize>());
        let deltas = delta.chunks_exact((self.positions() * self.0.filters).max(1));
        for (delta, image) in deltas.zip(images.chunks_exact(image.max(1))) {
            let filters = sum.chunks_exact_mut(self.0.window.size[0] * run);
            for (nonzeros, filter) in self.list_nonzeros(delta, scratch).zip(filters) {
                for (y, sum) in filter.chunks_exact_mut(run).enumerate() {
                    gather_axpy(sum, &image[self.0.run_offset(0, 0, y)..], nonzeros);
                }
            }
        }
    }

    /// Adds the gradient of some images to `images`.
    pub fn input_gradient(&self, images: &mut [f32], delta: &[f32], weight: &[f32], scratch: &mut [f32]) {
        let (run, image) = (self.0.run_len(), self.0.image.iter().product::<usize>());
        let deltas = delta.chunks_exact((self.positions() * self.0.filters).max(1));
        for (delta, image) in deltas.zip(images.chunks_exact_mut(image.max(1))) {
            let filters = weight.chunks_exact(self.0.window.size[0] * run);
            for (nonzeros, filter) in self.list_nonzeros(delta, scratch).zip(filters) {
                for (y, values) in filter.chunks_exact(run).enumerate() {
                    scatter_axpy(&mut image[self.0.run_offset(0, 0, y)..], values, nonzeros);
                }
            }
        }
    }

    /// Lists the nonzeros of an image's gradient per filter, each with the offset of its window in the image.
    fn list_nonzeros<'a>(
        &self,
        delta: &[f32],
        scratch: &'a mut [f32],
    ) -> impl Iterator<Item = &'a [Nonzero]> {
        let (positions, filters) = (self.positions(), self.0.filters);
        let (counts, nonzeros) = scratch[..self.scratch_len()].split_at_mut(filters);
        let nonzeros = nonzeros.as_chunks_mut::<2>().0;
        counts.fill(0.0);
        for (position, deltas) in delta.chunks_exact(filters.max(1)).enumerate() {
            let (down, across) = (position / self.0.output_size[1], position % self.0.output_size[1]);
            let offset = self.0.run_offset(0, down, 0) + across * self.0.position_stride();
            for ((filter, delta), count) in deltas.iter().enumerate().zip(counts.iter_mut()) {
                // Always written, but counted only if nonzero: no branch to mispredict.
                let next = count.to_bits();
                nonzeros[filter * positions + next as usize] = nonzero(offset, *delta);
                *count = f32::from_bits(next + u32::from(*delta != 0.0));
            }
        }
        let (counts, nonzeros) = (&*counts, &*nonzeros);
        counts
            .iter()
            .zip(nonzeros.chunks_exact(positions.max(1)))
            .map(|(count, nonzeros)| &nonzeros[..count.to_bits() as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::window::Window;
    use thalweg_core::Rng;

    /// Both gradients against their definition: images of 6x7 with 16 channels, windows of 3x2 that move by 2 and 1.
    #[test]
    fn gradients_match_the_definition() {
        let (image, output_size, filters, images) = ([6, 7, 16], [2, 6], 5, 3);
        let window = Window { stride: [2, 1], ..Window::new([3, 2]) };
        let sparse =
            SparseBackward::new(DirectConvolution::new(image, &window, output_size, filters, 1)).unwrap();
        let mut rng = Rng::keyed(1, "scattered", &[]);
        let mut numbers = |count: usize| (0..count).map(|_| rng.normal()).collect::<Vec<f32>>();
        let (pixels, weight) = (numbers(images * 6 * 7 * 16), numbers(filters * 3 * 2 * 16));
        let mut delta = numbers(images * 2 * 6 * filters);
        delta.iter_mut().enumerate().filter(|(index, _)| index % 4 != 1).for_each(|(_, delta)| *delta = 0.0);
        let (mut of_weight, mut of_pixels) = (vec![0.0; weight.len()], vec![0.0; pixels.len()]);
        let mut scratch = vec![f32::NAN; sparse.scratch_len()];
        sparse.weight_gradient(&mut of_weight, &delta, &pixels, &mut scratch);
        sparse.input_gradient(&mut of_pixels, &delta, &weight, &mut scratch);
        let (mut weight_sums, mut pixel_sums) = (vec![0.0; weight.len()], vec![0.0; pixels.len()]);
        for (index, delta) in delta.iter().enumerate() {
            let (filter, position) = (index % filters, index / filters % 12);
            let (number, down, across) = (index / filters / 12, position / 6, position % 6);
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
    fn nan_counts_as_nonzero() {
        let direct = DirectConvolution::new([1, 2, 16], &Window::new([1, 2]), [1, 1], 1, 1);
        let sparse = SparseBackward::new(direct).unwrap();
        let (mut sum, mut scratch) = (vec![0.0; 32], vec![0.0; sparse.scratch_len()]);
        sparse.weight_gradient(&mut sum, &[f32::NAN], &[1.0; 32], &mut scratch);
        assert!(sum.iter().all(|sum| sum.is_nan()));
    }
}
