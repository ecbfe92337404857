//! Convolution over images `height x width x channels`, as matrix products over unfolded windows.
//!
//! Unfolding writes the numbers under each place of the window as one line, so that a few images at a time become one
//! product with the `[filters, height * width * channels]` weight; few enough that the lines stay in the second cache.
//! The gradients unfold again instead of keeping the lines: memory is dearer than copying.

use super::direct::Direct;
use super::elementwise::Elementwise;
use super::matrix::{Matrix, MatrixMut, Packed, multiply, multiply_packed};
use super::scattered::Scattered;
use super::window::Window;
use super::{Op, Operator, expect_inputs, work};
use crate::autodiff::Tape;
use crate::executor::{Call, room};
use crate::graph::{NodeId, Shape};
use crate::kernel::arithmetic;
use crate::kernel::unfold::{fold, unfold};
use crate::shares;
use crate::team::MOST_SHARES;
use std::ops::Range;
use thalweg_core::{Batch, Result};

/// Unfolded numbers at a time: 512 KiB.
const CHUNK: usize = 1 << 17;

/// The inputs are the images, the weight `[filters, window height, window width, channels / groups]`, then the operands
/// of the epilogue.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// How the filters lie on the image.
    pub window: Window,
    /// Into how many groups channels and filters are cut; each filter sees its group's channels only.
    pub groups: usize,
    /// What follows, element by element.
    pub epilogue: Elementwise,
}

/// The gradient of the weight, from the gradient of the result and the images.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionWeightGradient {
    /// How the filters lie on the image.
    pub window: Window,
    /// Into how many groups channels and filters are cut.
    pub groups: usize,
    /// Whether most of the gradient of the result is zero.
    pub scattered: bool,
}

/// The gradient of the images, from the gradient of the result and the weight.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionInputGradient {
    /// How the filters lie on the image.
    pub window: Window,
    /// Into how many groups channels and filters are cut.
    pub groups: usize,
    /// Whether most of the gradient of the result is zero.
    pub scattered: bool,
    /// Height, width and channels of an image.
    pub image: [usize; 3],
}

/// The sizes of a convolution.
struct Sizes {
    image: [usize; 3],
    places: [usize; 2],
    filters: usize,
    groups: usize,
    /// Numbers under a window in one group.
    line: usize,
}

impl Sizes {
    fn new(window: &Window, groups: usize, image: &[usize], filters: usize) -> Result<Sizes, String> {
        let &[height, width, channels] = image else {
            return Err(format!("expected an image (height x width x channels), got {}", Shape::rows(image)));
        };
        if groups == 0 || !channels.is_multiple_of(groups) || !filters.is_multiple_of(groups) {
            return Err(format!(
                "expected channels and filters that {groups} groups can share, got {channels} channels and {filters} filters"
            ));
        }
        let places = window.places([height, width])?;
        let line = window.size[0] * window.size[1] * channels / groups;
        Ok(Sizes { image: [height, width, channels], places, filters, groups, line })
    }

    /// Sizes that were checked when the graph was made.
    fn known(window: &Window, groups: usize, image: &[usize], filters: usize) -> Sizes {
        match Sizes::new(window, groups, image, filters) {
            Ok(sizes) => sizes,
            Err(reason) => unreachable!("{reason}"),
        }
    }

    fn image_len(&self) -> usize {
        self.image.iter().product()
    }

    /// Lines per image.
    fn lines(&self) -> usize {
        self.places[0] * self.places[1]
    }

    /// Images that are unfolded at a time.
    fn images_at_once(&self) -> usize {
        (CHUNK / (self.lines() * self.line).max(1)).max(1)
    }

    /// How to do without unfolding, where that is possible.
    fn direct(&self, window: &Window) -> Option<Direct> {
        Direct::new(self.image, window, self.places, self.filters, self.groups)
    }

    /// How to leave out zeros, where that is possible.
    fn scattered(&self, window: &Window, is_scattered: bool) -> Option<Scattered> {
        Scattered::new(self.direct(window)).filter(|_| is_scattered)
    }

    fn flops(&self) -> u64 {
        work(&[2, self.lines(), self.filters, self.line])
    }
}

impl Operator for Convolution {
    fn describe(&self) -> String {
        let [height, width] = self.window.size;
        self.epilogue.behind(format!("convolution {height}x{width}"))
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        let [image, weight, operands @ ..] = inputs else {
            return Err(format!("expected images and a weight, got {} inputs", inputs.len()));
        };
        let sizes = Sizes::new(&self.window, self.groups, image.sizes(), weight.sizes()[0])?;
        if weight.per_row() != sizes.filters * sizes.line {
            return Err(format!("expected {} numbers per filter, got a weight of {weight}", sizes.line));
        }
        let shape = image.with_sizes(&[sizes.places[0], sizes.places[1], sizes.filters]);
        self.epilogue.check(&shape, operands)?;
        Ok(shape)
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let filters = call.shape.width();
        let sizes = Sizes::known(&self.window, self.groups, call.shapes[0].sizes(), filters);
        let (lines, own) = (sizes.lines(), filters / sizes.groups);
        let direct = sizes.direct(&self.window);
        let packed = Packed::len(sizes.line, own);
        let kept = direct.as_ref().map_or(sizes.groups * packed, Direct::packed_len);
        let unfolded = if direct.is_some() { 0 } else { sizes.images_at_once() * lines * sizes.line };
        let scratch = room(&mut call.pass.memory.scratch, kept + unfolded);
        let (kept, unfolded) = scratch.split_at_mut(kept);
        if direct.is_none() {
            for (group, room) in kept.chunks_exact_mut(packed.max(1)).enumerate() {
                let weight = &call.inputs[1][group * own * sizes.line..][..own * sizes.line];
                Packed::new(room, Matrix::new(weight, own, sizes.line).transposed());
            }
        }
        for begin in (0..call.rows).step_by(sizes.images_at_once()) {
            let count = sizes.images_at_once().min(call.rows - begin);
            let images = &call.inputs[0][begin * sizes.image_len()..][..count * sizes.image_len()];
            let place = begin * lines * filters..(begin + count) * lines * filters;
            let output = &mut call.output[place.clone()];
            if let Some(direct) = &direct {
                direct.forward(output, images, call.inputs[1], kept);
            } else {
                let unfolded = &mut unfolded[..count * lines * sizes.line];
                for (group, weight) in kept.chunks_exact(packed.max(1)).enumerate() {
                    unfold(unfolded, images, sizes.image, &self.window, sizes.places, sizes.groups, group);
                    multiply_packed(
                        MatrixMut::strided(&mut output[group * own..], count * lines, own, filters),
                        Matrix::new(unfolded, count * lines, sizes.line),
                        &Packed::again(weight, sizes.line, own),
                        false,
                    );
                }
            }
            let mut operands = [&[][..]; crate::pass::MOST_INPUTS];
            let steps = self.epilogue.steps.iter().filter(|step| step.takes_operand());
            for ((operand, input), step) in operands.iter_mut().zip(&call.inputs[2..]).zip(steps) {
                *operand = if step.is_broadcast() { input } else { &input[place.clone()] };
            }
            self.epilogue.apply(output, filters, &operands);
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        assert!(self.epilogue.steps.is_empty(), "fusion comes after gradients");
        let Convolution { window, groups, .. } = *self;
        let [images, weight] = [tape.input(node, 0), tape.input(node, 1)];
        let scattered = tape.is_scattered(delta);
        if tape.wants(weight) {
            let op = Op::ConvolutionWeightGradient(ConvolutionWeightGradient { window, groups, scattered });
            let gradient = tape.add(op, &[delta, images]);
            tape.give(weight, gradient);
        }
        if tape.wants(images) {
            let sizes = tape.shape(images).sizes();
            let image = [sizes[0], sizes[1], sizes[2]];
            let op =
                Op::ConvolutionInputGradient(ConvolutionInputGradient { window, groups, scattered, image });
            let gradient = tape.add(op, &[delta, weight]);
            tape.give(images, gradient);
        }
    }

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        let sizes = Sizes::known(&self.window, self.groups, inputs[0].sizes(), shape.width());
        sizes.flops() + self.epilogue.flops(&[], shape)
    }
}

impl Operator for ConvolutionWeightGradient {
    fn describe(&self) -> String {
        "convolution' of weight".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 2)?;
        let sizes = Sizes::new(&self.window, self.groups, inputs[1].sizes(), inputs[0].width())?;
        let [height, width] = self.window.size;
        Ok(Shape::fixed(&[sizes.filters, height, width, sizes.image[2] / self.groups]))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let filters = call.shapes[0].width();
        let sizes = Sizes::known(&self.window, self.groups, call.shapes[1].sizes(), filters);
        let (rows, len, inputs, team) = (call.rows, call.output.len(), call.inputs, call.pass.team);
        let work = usize::try_from(sizes.flops() / 16).unwrap_or(usize::MAX);
        let count = shares::count(team, rows, rows.saturating_mul(work));
        let scattered = sizes.scattered(&self.window, self.scattered);
        let direct = sizes.direct(&self.window).filter(Direct::has_whole_panels);
        let unfolded = match (&scattered, &direct) {
            (Some(scattered), _) => scattered.room(),
            (None, Some(direct)) => direct.gradient_len(),
            (None, None) => sizes.images_at_once().min(rows) * sizes.lines() * sizes.line,
        };
        // The first share's sum goes straight into the result; the others' are added to it in order.
        let memory = room(&mut call.pass.memory.scratch, (count - 1) * len + count * unfolded);
        let (sums, lines) = memory.split_at_mut((count - 1) * len);
        let mut sums = std::iter::once(&mut *call.output).chain(sums.chunks_mut(len.max(1)));
        let mut lines = lines.chunks_mut(unfolded.max(1));
        let mut parts: [Option<(&mut [f32], &mut [f32])>; MOST_SHARES] =
            std::array::from_fn(|_| Some((sums.next()?, lines.next().unwrap_or_default())));
        team.each(&mut parts[..count], |index, part| {
            let (Some((sum, lines)), own) = (part, shares::bounds(rows, index, count)) else { return };
            let len = sizes.lines() * filters;
            let delta = &inputs[0][own.start * len..own.end * len];
            let images = &inputs[1][own.start * sizes.image_len()..own.end * sizes.image_len()];
            match (&scattered, &direct) {
                (Some(scattered), _) => {
                    sum.fill(0.0);
                    scattered.weight_gradient(sum, delta, images, lines);
                }
                (None, Some(direct)) if !own.is_empty() => {
                    direct.weight_gradient(sum, delta, images, lines);
                }
                _ => self.add_up(own, &sizes, inputs, sum, lines),
            }
        });
        let others = &call.pass.memory.scratch[..(count - 1) * len];
        others.chunks_exact(len.max(1)).for_each(|other| arithmetic::add(call.output, other));
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        Sizes::known(&self.window, self.groups, inputs[1].sizes(), inputs[0].width()).flops()
    }
}

impl ConvolutionWeightGradient {
    /// Writes the sum over some images; `unfolded` is room for their lines.
    fn add_up(
        &self,
        rows: Range<usize>,
        sizes: &Sizes,
        inputs: &[&[f32]],
        sum: &mut [f32],
        unfolded: &mut [f32],
    ) {
        let (lines, filters, own) = (sizes.lines(), sizes.filters, sizes.filters / sizes.groups);
        if rows.is_empty() {
            sum.fill(0.0);
        }
        for begin in rows.clone().step_by(sizes.images_at_once()) {
            let count = sizes.images_at_once().min(rows.end - begin);
            let images = &inputs[1][begin * sizes.image_len()..][..count * sizes.image_len()];
            let delta = &inputs[0][begin * lines * filters..][..count * lines * filters];
            let unfolded = &mut unfolded[..count * lines * sizes.line];
            for group in 0..sizes.groups {
                unfold(unfolded, images, sizes.image, &self.window, sizes.places, sizes.groups, group);
                let gradient = &mut sum[group * own * sizes.line..][..own * sizes.line];
                multiply(
                    MatrixMut::new(gradient, own, sizes.line),
                    Matrix::strided(&delta[group * own..], count * lines, own, filters).transposed(),
                    Matrix::new(unfolded, count * lines, sizes.line),
                    begin > rows.start,
                );
            }
        }
    }
}

impl Operator for ConvolutionInputGradient {
    fn describe(&self) -> String {
        "convolution' of images".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 2)?;
        Ok(inputs[0].with_sizes(&self.image))
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let filters = call.shapes[0].width();
        let sizes = Sizes::known(&self.window, self.groups, &self.image, filters);
        let (lines, own) = (sizes.lines(), filters / sizes.groups);
        if let Some(scattered) = sizes.scattered(&self.window, self.scattered) {
            let room = room(&mut call.pass.memory.scratch, scattered.room());
            call.output.fill(0.0);
            scattered.input_gradient(call.output, call.inputs[0], call.inputs[1], room);
            return Ok(());
        }
        let packed = Packed::len(own, sizes.line);
        let unfolded = sizes.images_at_once() * lines * sizes.line;
        let scratch = room(&mut call.pass.memory.scratch, sizes.groups * packed + unfolded);
        let (kept, unfolded) = scratch.split_at_mut(sizes.groups * packed);
        for (group, room) in kept.chunks_exact_mut(packed.max(1)).enumerate() {
            let weight = &call.inputs[1][group * own * sizes.line..][..own * sizes.line];
            Packed::new(room, Matrix::new(weight, own, sizes.line));
        }
        for begin in (0..call.rows).step_by(sizes.images_at_once()) {
            let count = sizes.images_at_once().min(call.rows - begin);
            let images = &mut call.output[begin * sizes.image_len()..][..count * sizes.image_len()];
            let delta = &call.inputs[0][begin * lines * filters..][..count * lines * filters];
            let unfolded = &mut unfolded[..count * lines * sizes.line];
            images.fill(0.0);
            for (group, weight) in kept.chunks_exact(packed.max(1)).enumerate() {
                multiply_packed(
                    MatrixMut::new(unfolded, count * lines, sizes.line),
                    Matrix::strided(&delta[group * own..], count * lines, own, filters),
                    &Packed::again(weight, own, sizes.line),
                    false,
                );
                fold(unfolded, images, sizes.image, &self.window, sizes.places, sizes.groups, group);
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        Sizes::known(&self.window, self.groups, &self.image, inputs[0].width()).flops()
    }
}
