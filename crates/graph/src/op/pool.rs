//! Pooling: one number for each window and channel of an image, the largest or the mean.

use super::window::Window;
use super::{Op, Operator, expect_inputs, work};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use crate::kernel::pool;
use thalweg_core::{Batch, Result};

/// What becomes of the numbers under a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The largest; padding never wins.
    Largest,
    /// The sum over the window's size; padding counts as 0.
    Mean,
}

/// Windows over `height x width x channels`; beside the result of the largest, which point of the window it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pool {
    /// Largest or mean.
    pub pooling: Pooling,
    /// How the windows lie on the image.
    pub window: Window,
}

/// The way back: the inputs are the gradient of the result and, for the largest, the chosen points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolGradient {
    /// Largest or mean.
    pub pooling: Pooling,
    /// How the windows lie on the image.
    pub window: Window,
    /// Height, width and channels of an image.
    pub image: [usize; 3],
}

/// A point's share of its window's mean.
fn share(window: &Window) -> f32 {
    1.0 / (window.size[0] * window.size[1]) as f32
}

impl Operator for Pool {
    fn describe(&self) -> String {
        let name = if self.pooling == Pooling::Largest { "largest" } else { "mean" };
        format!("{name} of {}x{}", self.window.size[0], self.window.size[1])
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
        let [down, across] = self.window.places([height, width])?;
        Ok(inputs[0].with_sizes(&[down, across, channels]))
    }

    fn parts(&self, inputs: &[&Shape]) -> Vec<Shape> {
        self.shape(inputs).into_iter().collect()
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let sizes = call.shapes[0].sizes();
        let (image, rows, window) = ([sizes[0], sizes[1], sizes[2]], call.rows, &self.window);
        let (images, output) = (call.inputs[0], &mut *call.output);
        match (self.pooling, call.parts[0].as_deref_mut()) {
            (Pooling::Mean, _) => {
                output.fill(0.0);
                pool::gather(output, images, window, image, rows, share(window));
            }
            (Pooling::Largest, None) => {
                pool::largest(output, images, window, image);
            }
            (Pooling::Largest, Some(chosen)) => {
                pool::largest_chosen(output, chosen, images, window, image);
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
            Pooling::Largest => {
                let chosen = tape.add(Op::Part(0), &[node]);
                tape.add(op, &[delta, chosen])
            }
        };
        tape.give(images, gradient);
    }

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        work(&[self.window.size[0], self.window.size[1], shape.per_row()])
    }
}

impl PoolGradient {
    /// Whether three of four numbers or more are zero.
    pub fn is_scattered(&self) -> bool {
        let Window { size, stride, .. } = self.window;
        self.pooling == Pooling::Largest && stride[0] * stride[1] >= 4 && size[0] * size[1] >= 4
    }

    /// Whether every point lies under exactly one place.
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

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let (image, rows, window) = (self.image, call.rows, &self.window);
        match self.pooling {
            Pooling::Mean => {
                call.output.fill(0.0);
                pool::spread(call.output, call.inputs[0], window, image, rows, share(window));
            }
            Pooling::Largest if self.is_tiling() => {
                pool::hand_chosen(call.output, call.inputs[0], call.inputs[1], window, image, rows);
            }
            Pooling::Largest => {
                call.output.fill(0.0);
                pool::give_chosen(call.output, call.inputs[0], call.inputs[1], window, image, rows);
            }
        }
        Ok(())
    }

    /// Only the mean's way back is used forwards: to make an image larger.
    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        assert_eq!(self.pooling, Pooling::Mean, "only means are spread forwards");
        let gradient = tape.add(Op::Pool(Pool { pooling: self.pooling, window: self.window }), &[delta]);
        tape.give(tape.input(node, 0), gradient);
    }

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        work(&[self.window.size[0], self.window.size[1], inputs[0].per_row()])
    }
}
