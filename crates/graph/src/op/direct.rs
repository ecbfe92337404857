//! Convolutions that read images where they lie: the numbers under one line of a window stand side by side in the image,
//! so that places next to each other are rows of a matrix already. Needs windows without padding, dilation and groups.

use super::matrix::{Matrix, MatrixMut, Packed, multiply_packed};
use super::window::Window;
use crate::kernel::panel::{self, DEPTH, Left, Right, Target, tile_up};

/// The fewest numbers side by side for which it pays.
const LEAST_RUN: usize = 32;

/// A convolution over whole images.
pub struct Direct {
    /// Height, width and channels of an image.
    pub image: [usize; 3],
    /// How the filters lie on it.
    pub window: Window,
    /// Places down and across.
    pub places: [usize; 2],
    /// How many filters there are.
    pub filters: usize,
}

impl Direct {
    /// If the convolution can be done this way.
    pub fn new(
        image: [usize; 3],
        window: &Window,
        places: [usize; 2],
        filters: usize,
        groups: usize,
    ) -> Option<Direct> {
        let fits = groups == 1 && window.padding == [0; 2] && window.dilation == [1; 2];
        let direct = Direct { image, window: *window, places, filters };
        (fits && direct.run() >= LEAST_RUN).then_some(direct)
    }

    /// Numbers under one line of the window.
    pub fn run(&self) -> usize {
        self.window.size[1] * self.image[2]
    }

    /// Where the numbers under line `y` of the window at the first place of a row begin.
    pub fn begin(&self, image: usize, down: usize, y: usize) -> usize {
        let [height, width, channels] = self.image;
        ((image * height + down * self.window.stride[0] + y) * width) * channels
    }

    /// Between the numbers of two places side by side.
    pub fn step(&self) -> usize {
        self.window.stride[1] * self.image[2]
    }

    /// How much room the packed weight takes.
    pub fn packed_len(&self) -> usize {
        Packed::len(self.window.size[0] * self.run(), self.filters)
    }

    /// Writes the results of some images.
    pub fn forward(&self, output: &mut [f32], images: &[f32], weight: &[f32], room: &mut [f32]) {
        let ([downs, acrosses], run, filters) = (self.places, self.run(), self.filters);
        let lines = self.window.size[0];
        let own = Packed::len(run, filters);
        for (y, room) in room.chunks_exact_mut(own).take(lines).enumerate() {
            // A filter's numbers for this line of the window.
            let line = Matrix::strided(&weight[y * run..], filters, run, lines * run);
            Packed::new(room, line.transposed());
        }
        for (index, output) in output.chunks_exact_mut((acrosses * filters).max(1)).enumerate() {
            let (image, down) = (index / downs, index % downs);
            for (y, packed) in room.chunks_exact(own).take(lines).enumerate() {
                let packed = Packed::again(packed, run, filters);
                let left = Matrix::strided(&images[self.begin(image, down, y)..], acrosses, run, self.step());
                multiply_packed(MatrixMut::new(output, acrosses, filters), left, &packed, y > 0);
            }
        }
    }

    /// Whether a panel never reaches from one point of a window to the next, as the gradient of the weight needs it.
    pub fn has_whole_panels(&self) -> bool {
        self.image[2].is_multiple_of(panel::width())
    }

    /// How much room the gradient of the weight takes.
    pub fn gradient_len(&self) -> usize {
        DEPTH * (self.filters + self.window.size[0] * self.run())
    }

    /// Writes the gradient of the weight, summed over some images.
    pub fn weight_gradient(&self, sum: &mut [f32], delta: &[f32], images: &[f32], room: &mut [f32]) {
        let (filters, columns) = (self.filters, self.window.size[0] * self.run());
        let (tiles, panels) = room.split_at_mut(DEPTH * filters);
        let all = delta.len() / filters.max(1);
        for begin in (0..all).step_by(DEPTH) {
            let depth = DEPTH.min(all - begin);
            tile_up(tiles, &delta[begin * filters..], filters, filters, depth);
            let panels = &mut panels[..depth * columns];
            self.pack(panels, images, begin, depth);
            let target =
                Target { values: &mut *sum, rows: filters, columns, row_stride: columns, add: begin > 0 };
            panel::sweep(target, Left::Tiles(tiles), Right::packed(panels, depth), depth);
        }
    }

    /// Writes the numbers under some places as panels of a right factor, a line for each place.
    fn pack(&self, panels: &mut [f32], images: &[f32], begin: usize, depth: usize) {
        let ([downs, acrosses], run, width) = (self.places, self.run(), panel::width());
        for (index, panel) in panels.chunks_exact_mut(depth * width).enumerate() {
            let (y, within) = (index * width / run, index * width % run);
            let mut lines = panel.chunks_exact_mut(width);
            let mut place = begin;
            while place < begin + depth {
                let (row, across) = (place / acrosses, place % acrosses);
                let count = (acrosses - across).min(begin + depth - place);
                let start = self.begin(row / downs, row % downs, y) + across * self.step() + within;
                panel::gather(lines.by_ref().take(count), &images[start..], self.step());
                place += count;
            }
        }
    }
}
