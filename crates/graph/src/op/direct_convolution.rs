//! Direct convolution: reads images in place, without unfolding. The elements under one row of a window are
//! contiguous in the image, so that adjacent window positions are rows of a strided matrix already. Requires windows
//! without padding, dilation and groups.

use super::matrix::{Matrix, MatrixMut, Packed, multiply_packed};
use super::window::Window;
use crate::kernel::gemm::{self, BLOCK_DEPTH, LeftBlock, ResultBlock, RightPanels, pack_left};

/// The shortest run of contiguous elements for which it pays.
const MIN_RUN: usize = 32;

pub struct DirectConvolution {
    /// Height, width and channels of an image.
    pub image: [usize; 3],
    pub window: Window,
    /// Window positions down and across.
    pub output_size: [usize; 2],
    pub filters: usize,
}

impl DirectConvolution {
    /// `None` if the convolution does not meet the requirements.
    pub fn new(
        image: [usize; 3],
        window: &Window,
        output_size: [usize; 2],
        filters: usize,
        groups: usize,
    ) -> Option<DirectConvolution> {
        let fits = groups == 1 && window.padding == [0; 2] && window.dilation == [1; 2];
        let direct = DirectConvolution { image, window: *window, output_size, filters };
        (fits && direct.run_len() >= MIN_RUN).then_some(direct)
    }

    /// Elements under one row of the window.
    pub fn run_len(&self) -> usize {
        self.window.size[1] * self.image[2]
    }

    /// Offset of the run under row `y` of the window, at the first position of output row `down`.
    pub fn run_offset(&self, image: usize, down: usize, y: usize) -> usize {
        let [height, width, channels] = self.image;
        ((image * height + down * self.window.stride[0] + y) * width) * channels
    }

    /// Distance between the runs of two adjacent positions.
    pub fn position_stride(&self) -> usize {
        self.window.stride[1] * self.image[2]
    }

    /// Elements of the packed weight.
    pub fn packed_len(&self) -> usize {
        Packed::len(self.window.size[0] * self.run_len(), self.filters)
    }

    /// Computes the results of some images; `packed` is scratch memory for the weight.
    pub fn forward(&self, output: &mut [f32], images: &[f32], weight: &[f32], packed: &mut [f32]) {
        let ([out_height, out_width], run, filters) = (self.output_size, self.run_len(), self.filters);
        let window_rows = self.window.size[0];
        let packed_len = Packed::len(run, filters);
        for (y, buffer) in packed.chunks_exact_mut(packed_len).take(window_rows).enumerate() {
            // The weights of all filters for this row of the window.
            let row = Matrix::strided(&weight[y * run..], filters, run, window_rows * run);
            Packed::new(buffer, row.transposed());
        }
        for (index, output) in output.chunks_exact_mut((out_width * filters).max(1)).enumerate() {
            let (image, down) = (index / out_height, index % out_height);
            for (y, weight) in packed.chunks_exact(packed_len).take(window_rows).enumerate() {
                let weight = Packed::from_packed(weight, run, filters);
                let runs = &images[self.run_offset(image, down, y)..];
                let left = Matrix::strided(runs, out_width, run, self.position_stride());
                multiply_packed(MatrixMut::new(output, out_width, filters), left, &weight, y > 0);
            }
        }
    }

    /// Whether no panel spans two pixels of a window, as the gradient of the weight requires.
    pub fn has_whole_panels(&self) -> bool {
        self.image[2].is_multiple_of(gemm::panel_width())
    }

    /// Scratch elements of [`DirectConvolution::weight_gradient`].
    pub fn gradient_scratch_len(&self) -> usize {
        BLOCK_DEPTH * (self.filters + self.window.size[0] * self.run_len())
    }

    /// Writes the gradient of the weight, summed over some images.
    pub fn weight_gradient(&self, sum: &mut [f32], delta: &[f32], images: &[f32], scratch: &mut [f32]) {
        let (filters, columns) = (self.filters, self.window.size[0] * self.run_len());
        let (tiles, panels) = scratch.split_at_mut(BLOCK_DEPTH * filters);
        let positions = delta.len() / filters.max(1);
        for begin in (0..positions).step_by(BLOCK_DEPTH) {
            let depth = BLOCK_DEPTH.min(positions - begin);
            pack_left(tiles, &delta[begin * filters..], filters, filters, depth);
            let panels = &mut panels[..depth * columns];
            self.pack_positions(panels, images, begin, depth);
            let target = ResultBlock {
                values: &mut *sum,
                rows: filters,
                columns,
                row_stride: columns,
                accumulate: begin > 0,
            };
            gemm::macro_kernel(target, LeftBlock::Tiles(tiles), RightPanels::packed(panels, depth), depth);
        }
    }

    /// Packs the elements under `depth` window positions into panels of a right factor, one row per position.
    fn pack_positions(&self, panels: &mut [f32], images: &[f32], begin: usize, depth: usize) {
        let ([out_height, out_width], run, width) = (self.output_size, self.run_len(), gemm::panel_width());
        for (index, panel) in panels.chunks_exact_mut(depth * width).enumerate() {
            let (y, within) = (index * width / run, index * width % run);
            let mut rows = panel.chunks_exact_mut(width);
            let mut position = begin;
            while position < begin + depth {
                let (row, across) = (position / out_width, position % out_width);
                let count = (out_width - across).min(begin + depth - position);
                let start = self.run_offset(row / out_height, row % out_height, y)
                    + across * self.position_stride()
                    + within;
                gemm::copy_rows(rows.by_ref().take(count), &images[start..], self.position_stride());
                position += count;
            }
        }
    }
}
