//! Max and mean pooling over images.

use super::window::Window;
use super::{Op, Operator, expect_inputs, flop_count};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use crate::kernel::pool;
use thalweg_core::{Batch, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The maximum; padding is ignored.
    Max,
    /// The sum over the window's size; padding counts as 0.
    Mean,
}

/// Pooling of `height x width x channels`. Side output of a max pool: the index of each maximum in its window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pool {
    pub pooling: Pooling,
    pub window: Window,
}

/// The inputs are the gradient of the result and, for a max pool, the indices of the maxima.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolGradient {
    pub pooling: Pooling,
    pub window: Window,
    /// Height, width and channels of an image.
    pub image: [usize; 3],
}

/// The weight of a pixel in the mean of its window.
fn mean_factor(window: &Window) -> f32 {
    1.0 / (window.size[0] * window.size[1]) as f32
}

impl Operator for Pool {
    fn describe(&self) -> String {
        let name = if self.pooling == Pooling::Max { "max" } else { "mean" };
        format!("{name} pool {}x{}", self.window.size[0], self.window.size[1])
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        let &[height, width, channels] = inputs[0].sizes() else {
            return Err(format!("expected an image (height x width x channels), got {}", inputs[0]));
        };
        let Window { size, padding, .. } = self.window;
        if let Some(padding) = (0..2).find(|axis| padding[*axis] > size[*axis] / 2).map(|axis| padding[axis])
        {
            let [height, width] = size;
            return Err(format!(
                "expected padding of at most half of the window of {height}x{width}, got {padding}"
            ));
        }
        let [down, across] = self.window.output_size([height, width])?;
        Ok(inputs[0].with_sizes(&[down, across, channels]))
    }

    fn side_outputs(&self, inputs: &[&Shape]) -> Vec<Shape> {
        self.shape(inputs).into_iter().collect()
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let sizes = call.shapes[0].sizes();
        let (image, rows, window) = ([sizes[0], sizes[1], sizes[2]], call.rows, &self.window);
        let (images, output) = (call.inputs[0], &mut *call.output);
        match (self.pooling, call.side_outputs[0].as_deref_mut()) {
            (Pooling::Mean, _) => {
                output.fill(0.0);
                pool::mean_pool(output, images, window, image, rows, mean_factor(window));
            }
            (Pooling::Max, None) => {
                pool::max_pool(output, images, window, image);
            }
            (Pooling::Max, Some(indices)) => {
                pool::max_pool_with_indices(output, indices, images, window, image);
            }
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let images = tape.input(node, 0);
        let sizes = tape.shape(images).sizes();
        let image = [sizes[0], sizes[1], sizes[2]];
        let op = Op::PoolGradient(PoolGradient { pooling: self.pooling, window: self.window, image });
        let gradient = match self.pooling {
            Pooling::Mean => tape.add(op, &[delta]),
            Pooling::Max => {
                let indices = tape.add(Op::SideOutput(0), &[node]);
                tape.add(op, &[delta, indices])
            }
        };
        tape.accumulate(images, gradient);
    }

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        flop_count(&[self.window.size[0], self.window.size[1], shape.per_row()])
    }
}

impl PoolGradient {
    /// Whether at least three of four elements are zero.
    pub fn is_mostly_zero(&self) -> bool {
        let Window { size, stride, .. } = self.window;
        self.pooling == Pooling::Max && stride[0] * stride[1] >= 4 && size[0] * size[1] >= 4
    }

    /// Whether every pixel is under exactly one window position.
    fn is_tiling(&self) -> bool {
        let Window { size, stride, padding, dilation } = self.window;
        let whole = self.image.iter().zip(size).all(|(image, size)| image.is_multiple_of(size));
        size == stride && padding == [0; 2] && dilation == [1; 2] && whole
    }
}

impl Operator for PoolGradient {
    fn describe(&self) -> String {
        "pool'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        Ok(inputs[0].with_sizes(&self.image))
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (image, rows, window) = (self.image, call.rows, &self.window);
        match self.pooling {
            Pooling::Mean => {
                call.output.fill(0.0);
                pool::mean_pool_backward(
                    call.output,
                    call.inputs[0],
                    window,
                    image,
                    rows,
                    mean_factor(window),
                );
            }
            Pooling::Max if self.is_tiling() => {
                pool::max_pool_backward_tiled(
                    call.output,
                    call.inputs[0],
                    call.inputs[1],
                    window,
                    image,
                    rows,
                );
            }
            Pooling::Max => {
                call.output.fill(0.0);
                pool::max_pool_backward(call.output, call.inputs[0], call.inputs[1], window, image, rows);
            }
        }
        Ok(())
    }

    /// The gradient of mean pooling is also a forward operator: it upsamples an image.
    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        assert_eq!(self.pooling, Pooling::Mean, "only mean pooling is used for upsampling");
        let gradient = tape.add(Op::Pool(Pool { pooling: self.pooling, window: self.window }), &[delta]);
        tape.accumulate(tape.input(node, 0), gradient);
    }

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        flop_count(&[self.window.size[0], self.window.size[1], inputs[0].per_row()])
    }
}
