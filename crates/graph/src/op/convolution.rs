//! Convolution over images `height x width x channels`, as matrix products over unfolded windows (im2col).
//!
//! Unfolding writes the elements under each window position as one row, so that a few images at a time become one
//! product with the `[filters, height * width * channels]` weight: few enough that the unfolded rows stay in the
//! second-level cache. The gradients unfold again instead of keeping the rows, which would cost more memory bandwidth
//! than the copy. [`DirectConvolution`] and [`SparseBackward`] avoid unfolding where they apply.

use super::direct_convolution::DirectConvolution;
use super::elementwise::Elementwise;
use super::matrix::{Matrix, MatrixMut, Packed, multiply, multiply_packed};
use super::sparse_backward::SparseBackward;
use super::window::Window;
use super::{Op, Operator, expect_inputs, flop_count};
use crate::autodiff::Tape;
use crate::executor::{OperatorCall, scratch_slice};
use crate::graph::{NodeId, Shape};
use crate::kernel::arithmetic;
use crate::kernel::unfold::{fold, unfold};
use crate::partition;
use crate::team::MAX_CHUNKS;
use std::ops::Range;
use thalweg_core::{Batch, Result};

/// Unfolded elements at a time: 512 KiB.
const UNFOLDED_LEN: usize = 1 << 17;

/// The inputs are the images, the weight `[filters, window height, window width, channels / groups]`, then the operands
/// of the epilogue.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    pub window: Window,
    /// Groups of channels and filters; a filter reads the channels of its group only.
    pub groups: usize,
    pub epilogue: Elementwise,
}

/// The gradient of the weight, from the gradient of the result and the images.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionWeightGradient {
    pub window: Window,
    pub groups: usize,
    /// Whether most of the gradient of the result is zero.
    pub sparse_delta: bool,
}

/// The gradient of the images, from the gradient of the result and the weight.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionInputGradient {
    pub window: Window,
    pub groups: usize,
    /// Whether most of the gradient of the result is zero.
    pub sparse_delta: bool,
    /// Height, width and channels of an image.
    pub image: [usize; 3],
}

struct ConvolutionSizes {
    image: [usize; 3],
    output_size: [usize; 2],
    filters: usize,
    groups: usize,
    /// Elements of an unfolded row: those under a window in one group.
    row_len: usize,
}

impl ConvolutionSizes {
    fn new(
        window: &Window,
        groups: usize,
        image: &[usize],
        filters: usize,
    ) -> Result<ConvolutionSizes, String> {
        let &[height, width, channels] = image else {
            return Err(format!("expected an image (height x width x channels), got {}", Shape::rows(image)));
        };
        if groups == 0 || !channels.is_multiple_of(groups) || !filters.is_multiple_of(groups) {
            return Err(format!(
                "expected channels and filters divisible by {groups} groups, got {channels} channels and {filters} filters"
            ));
        }
        let output_size = window.output_size([height, width])?;
        let row_len = window.size[0] * window.size[1] * channels / groups;
        Ok(ConvolutionSizes { image: [height, width, channels], output_size, filters, groups, row_len })
    }

    /// ConvolutionSizes that were checked when the graph was built.
    fn checked(window: &Window, groups: usize, image: &[usize], filters: usize) -> ConvolutionSizes {
        match ConvolutionSizes::new(window, groups, image, filters) {
            Ok(sizes) => sizes,
            Err(reason) => unreachable!("{reason}"),
        }
    }

    fn image_len(&self) -> usize {
        self.image.iter().product()
    }

    /// Window positions, and so unfolded rows, per image.
    fn positions(&self) -> usize {
        self.output_size[0] * self.output_size[1]
    }

    /// Images that are unfolded at a time.
    fn images_per_block(&self) -> usize {
        (UNFOLDED_LEN / (self.positions() * self.row_len).max(1)).max(1)
    }

    /// The convolution without unfolding, where possible.
    fn direct(&self, window: &Window) -> Option<DirectConvolution> {
        DirectConvolution::new(self.image, window, self.output_size, self.filters, self.groups)
    }

    /// The backward pass over nonzeros, where possible.
    fn sparse(&self, window: &Window, sparse_delta: bool) -> Option<SparseBackward> {
        SparseBackward::new(self.direct(window)).filter(|_| sparse_delta)
    }

    fn flops(&self) -> u64 {
        flop_count(&[2, self.positions(), self.filters, self.row_len])
    }
}

impl Operator for Convolution {
    fn describe(&self) -> String {
        let [height, width] = self.window.size;
        self.epilogue.append_to(format!("convolution {height}x{width}"))
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        let [image, weight, operands @ ..] = inputs else {
            return Err(format!("expected images and a weight, got {} inputs", inputs.len()));
        };
        let sizes = ConvolutionSizes::new(&self.window, self.groups, image.sizes(), weight.sizes()[0])?;
        if weight.per_row() != sizes.filters * sizes.row_len {
            return Err(format!("expected {} numbers per filter, got a weight of {weight}", sizes.row_len));
        }
        let shape = image.with_sizes(&[sizes.output_size[0], sizes.output_size[1], sizes.filters]);
        self.epilogue.check(&shape, operands)?;
        Ok(shape)
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let filters = call.shape.width();
        let sizes = ConvolutionSizes::checked(&self.window, self.groups, call.shapes[0].sizes(), filters);
        let (positions, group_filters) = (sizes.positions(), filters / sizes.groups);
        let direct = sizes.direct(&self.window);
        let packed = Packed::len(sizes.row_len, group_filters);
        let weights = direct.as_ref().map_or(sizes.groups * packed, DirectConvolution::packed_len);
        let unfolded =
            if direct.is_some() { 0 } else { sizes.images_per_block() * positions * sizes.row_len };
        let scratch = scratch_slice(&mut call.context.workspace.scratch, weights + unfolded);
        let (weights, unfolded) = scratch.split_at_mut(weights);
        if direct.is_none() {
            for (group, buffer) in weights.chunks_exact_mut(packed.max(1)).enumerate() {
                let weight = &call.inputs[1][group * group_filters * sizes.row_len..];
                let weight =
                    Matrix::new(&weight[..group_filters * sizes.row_len], group_filters, sizes.row_len);
                Packed::new(buffer, weight.transposed());
            }
        }
        for begin in (0..call.rows).step_by(sizes.images_per_block()) {
            let count = sizes.images_per_block().min(call.rows - begin);
            let images = &call.inputs[0][begin * sizes.image_len()..][..count * sizes.image_len()];
            let range = begin * positions * filters..(begin + count) * positions * filters;
            let output = &mut call.output[range.clone()];
            if let Some(direct) = &direct {
                direct.forward(output, images, call.inputs[1], weights);
            } else {
                let unfolded = &mut unfolded[..count * positions * sizes.row_len];
                for (group, weight) in weights.chunks_exact(packed.max(1)).enumerate() {
                    unfold(
                        unfolded,
                        images,
                        sizes.image,
                        &self.window,
                        sizes.output_size,
                        sizes.groups,
                        group,
                    );
                    multiply_packed(
                        MatrixMut::strided(
                            &mut output[group * group_filters..],
                            count * positions,
                            group_filters,
                            filters,
                        ),
                        Matrix::new(unfolded, count * positions, sizes.row_len),
                        &Packed::from_packed(weight, sizes.row_len, group_filters),
                        false,
                    );
                }
            }
            let mut operands = [&[][..]; crate::pass::MAX_INPUTS];
            let steps = self.epilogue.steps.iter().filter(|step| step.takes_operand());
            for ((operand, input), step) in operands.iter_mut().zip(&call.inputs[2..]).zip(steps) {
                *operand = if step.is_broadcast() { input } else { &input[range.clone()] };
            }
            self.epilogue.apply(output, filters, &operands);
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        assert!(self.epilogue.steps.is_empty(), "fusion comes after differentiation");
        let Convolution { window, groups, .. } = *self;
        let [images, weight] = [tape.input(node, 0), tape.input(node, 1)];
        let sparse_delta = tape.is_mostly_zero(delta);
        if tape.needs_gradient(weight) {
            let op =
                Op::ConvolutionWeightGradient(ConvolutionWeightGradient { window, groups, sparse_delta });
            let gradient = tape.add(op, &[delta, images]);
            tape.accumulate(weight, gradient);
        }
        if tape.needs_gradient(images) {
            let sizes = tape.shape(images).sizes();
            let image = [sizes[0], sizes[1], sizes[2]];
            let op = Op::ConvolutionInputGradient(ConvolutionInputGradient {
                window,
                groups,
                sparse_delta,
                image,
            });
            let gradient = tape.add(op, &[delta, weight]);
            tape.accumulate(images, gradient);
        }
    }

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        let sizes = ConvolutionSizes::checked(&self.window, self.groups, inputs[0].sizes(), shape.width());
        sizes.flops() + self.epilogue.flops(&[], shape)
    }
}

impl Operator for ConvolutionWeightGradient {
    fn describe(&self) -> String {
        "convolution' of weight".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 2)?;
        let sizes = ConvolutionSizes::new(&self.window, self.groups, inputs[1].sizes(), inputs[0].width())?;
        let [height, width] = self.window.size;
        Ok(Shape::fixed(&[sizes.filters, height, width, sizes.image[2] / self.groups]))
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let filters = call.shapes[0].width();
        let sizes = ConvolutionSizes::checked(&self.window, self.groups, call.shapes[1].sizes(), filters);
        let (rows, len, inputs, team) = (call.rows, call.output.len(), call.inputs, call.context.team);
        let work = usize::try_from(sizes.flops() / 16).unwrap_or(usize::MAX);
        let count = partition::chunk_count(team, rows, rows.saturating_mul(work));
        let sparse = sizes.sparse(&self.window, self.sparse_delta);
        let direct = sizes.direct(&self.window).filter(DirectConvolution::has_whole_panels);
        let unfolded = match (&sparse, &direct) {
            (Some(sparse), _) => sparse.scratch_len(),
            (None, Some(direct)) => direct.gradient_scratch_len(),
            (None, None) => sizes.images_per_block().min(rows) * sizes.positions() * sizes.row_len,
        };
        // The first chunk accumulates in the result; the partial sums of the others are added to it in order.
        let scratch =
            scratch_slice(&mut call.context.workspace.scratch, (count - 1) * len + count * unfolded);
        let (sums, unfolds) = scratch.split_at_mut((count - 1) * len);
        let mut sums = std::iter::once(&mut *call.output).chain(sums.chunks_mut(len.max(1)));
        let mut unfolds = unfolds.chunks_mut(unfolded.max(1));
        let mut chunks: [Option<(&mut [f32], &mut [f32])>; MAX_CHUNKS] =
            std::array::from_fn(|_| Some((sums.next()?, unfolds.next().unwrap_or_default())));
        team.for_each(&mut chunks[..count], |index, chunk| {
            let (Some((sum, unfolded)), own) = (chunk, partition::chunk_range(rows, count, index)) else {
                return;
            };
            let len = sizes.positions() * filters;
            let delta = &inputs[0][own.start * len..own.end * len];
            let images = &inputs[1][own.start * sizes.image_len()..own.end * sizes.image_len()];
            match (&sparse, &direct) {
                (Some(sparse), _) => {
                    sum.fill(0.0);
                    sparse.weight_gradient(sum, delta, images, unfolded);
                }
                (None, Some(direct)) if !own.is_empty() => {
                    direct.weight_gradient(sum, delta, images, unfolded);
                }
                _ => self.sum_over_images(own, &sizes, inputs, sum, unfolded),
            }
        });
        let partial_sums = &call.context.workspace.scratch[..(count - 1) * len];
        partial_sums.chunks_exact(len.max(1)).for_each(|partial| arithmetic::add(call.output, partial));
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        ConvolutionSizes::checked(&self.window, self.groups, inputs[1].sizes(), inputs[0].width()).flops()
    }
}

impl ConvolutionWeightGradient {
    /// Writes the gradient summed over some images; `unfolded` is scratch memory.
    fn sum_over_images(
        &self,
        rows: Range<usize>,
        sizes: &ConvolutionSizes,
        inputs: &[&[f32]],
        sum: &mut [f32],
        unfolded: &mut [f32],
    ) {
        let (positions, filters) = (sizes.positions(), sizes.filters);
        let group_filters = filters / sizes.groups;
        if rows.is_empty() {
            sum.fill(0.0);
        }
        for begin in rows.clone().step_by(sizes.images_per_block()) {
            let count = sizes.images_per_block().min(rows.end - begin);
            let images = &inputs[1][begin * sizes.image_len()..][..count * sizes.image_len()];
            let delta = &inputs[0][begin * positions * filters..][..count * positions * filters];
            let unfolded = &mut unfolded[..count * positions * sizes.row_len];
            for group in 0..sizes.groups {
                unfold(unfolded, images, sizes.image, &self.window, sizes.output_size, sizes.groups, group);
                let gradient =
                    &mut sum[group * group_filters * sizes.row_len..][..group_filters * sizes.row_len];
                let delta = &delta[group * group_filters..];
                multiply(
                    MatrixMut::new(gradient, group_filters, sizes.row_len),
                    Matrix::strided(delta, count * positions, group_filters, filters).transposed(),
                    Matrix::new(unfolded, count * positions, sizes.row_len),
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

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let filters = call.shapes[0].width();
        let sizes = ConvolutionSizes::checked(&self.window, self.groups, &self.image, filters);
        let (positions, group_filters) = (sizes.positions(), filters / sizes.groups);
        if let Some(sparse) = sizes.sparse(&self.window, self.sparse_delta) {
            let scratch = scratch_slice(&mut call.context.workspace.scratch, sparse.scratch_len());
            call.output.fill(0.0);
            sparse.input_gradient(call.output, call.inputs[0], call.inputs[1], scratch);
            return Ok(());
        }
        let packed = Packed::len(group_filters, sizes.row_len);
        let unfolded = sizes.images_per_block() * positions * sizes.row_len;
        let scratch = scratch_slice(&mut call.context.workspace.scratch, sizes.groups * packed + unfolded);
        let (weights, unfolded) = scratch.split_at_mut(sizes.groups * packed);
        for (group, buffer) in weights.chunks_exact_mut(packed.max(1)).enumerate() {
            let weight = &call.inputs[1][group * group_filters * sizes.row_len..];
            let weight = &weight[..group_filters * sizes.row_len];
            Packed::new(buffer, Matrix::new(weight, group_filters, sizes.row_len));
        }
        for begin in (0..call.rows).step_by(sizes.images_per_block()) {
            let count = sizes.images_per_block().min(call.rows - begin);
            let images = &mut call.output[begin * sizes.image_len()..][..count * sizes.image_len()];
            let delta = &call.inputs[0][begin * positions * filters..][..count * positions * filters];
            let unfolded = &mut unfolded[..count * positions * sizes.row_len];
            images.fill(0.0);
            for (group, weight) in weights.chunks_exact(packed.max(1)).enumerate() {
                multiply_packed(
                    MatrixMut::new(unfolded, count * positions, sizes.row_len),
                    Matrix::strided(
                        &delta[group * group_filters..],
                        count * positions,
                        group_filters,
                        filters,
                    ),
                    &Packed::from_packed(weight, group_filters, sizes.row_len),
                    false,
                );
                fold(unfolded, images, sizes.image, &self.window, sizes.output_size, sizes.groups, group);
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        ConvolutionSizes::checked(&self.window, self.groups, &self.image, inputs[0].width()).flops()
    }
}
