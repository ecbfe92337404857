//! Convolution, pooling and upsampling: NCHW in the file, NHWC in memory.

use super::attributes::Attributes;
use super::constant::{SymInt, TensorData};
use super::importer::Importer;
use super::sampling::NearestSampling;
use super::value::Value;
use super::view::View;
use super::weights::Operand;
use crate::graph::NodeId;
use crate::onnx::proto::NodeProto;
use crate::op::Op;
use crate::op::convolution::Convolution;
use crate::op::elementwise::{Elementwise, ElementwiseStep};
use crate::op::pool::{Pool, PoolGradient, Pooling};
use crate::op::window::Window;
use thalweg_core::FileOrder;

/// The window attributes; padding must be the same on opposite sides.
fn window(attributes: Attributes<'_>, size: [usize; 2]) -> Result<Window, String> {
    let padding = match attributes.ints("pads") {
        None => [0, 0],
        Some(&[top, left, bottom, right]) if top == bottom && left == right => {
            let size = |pad: i64| usize::try_from(pad).ok().filter(|pad| *pad <= 1 << 24);
            match (size(top), size(left)) {
                (Some(top), Some(left)) => [top, left],
                _ => return Err(format!("attribute `pads`: padding {top} and {left} is invalid")),
            }
        }
        Some(pads) => {
            return Err(format!("attribute `pads` = {pads:?}: padding must be the same on opposite sides"));
        }
    };
    match attributes.string("auto_pad", "NOTSET").as_str() {
        "NOTSET" | "" => {}
        "VALID" if padding == [0, 0] => {}
        other => {
            return Err(format!("attribute `auto_pad` = \"{other}\" is not supported; use explicit `pads`"));
        }
    }
    let (stride, dilation) = (attributes.int_pair("strides", 1)?, attributes.int_pair("dilations", 1)?);
    if stride.contains(&0) || dilation.contains(&0) || size.contains(&0) {
        return Err("attributes `kernel_shape`, `strides` and `dilations` must be above 0".into());
    }
    Ok(Window { size, stride, padding, dilation })
}

impl Importer<'_> {
    /// A value in NHWC, and its height, width and channels.
    fn image(&mut self, name: &str) -> Result<(NodeId, [usize; 3]), String> {
        let view = self.view(name)?;
        if view.axes.len() != 4 {
            let shape = self.builder.shape(view.node);
            return Err(format!("expected images (rows x channels x height x width), got {shape}"));
        }
        let (view, _) = self.with_innermost(&view, &[2, 3, 1])?;
        let image = [view.size(2)?, view.size(3)?, view.size(1)?];
        Ok((self.reshape_node(view.node, &image)?, image))
    }

    /// The NCHW view of a node that holds NHWC images.
    fn as_image(&self, node: NodeId) -> View {
        let mut view = View::new(node, self.builder.shape(node).sizes());
        let channels = view.axes.remove(3);
        view.axes.insert(1, channels);
        view
    }

    pub fn convolution(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let [read, weight] = [0, 1].map(|index| node.input.get(index).cloned().unwrap_or_default());
        let weight = self.weight(&weight)?;
        let &[filters, group_channels, height, width] = weight.file_shape.as_slice() else {
            return Err(format!("`{}`: only convolutions over images are supported", weight.name));
        };
        let (image, [_, _, channels]) = self.image(&read)?;
        let groups = usize::try_from(attributes.int("group", 1)).unwrap_or(0);
        if groups.checked_mul(group_channels) != Some(channels) {
            return Err(format!(
                "`{}`: expected {groups} x {group_channels} channels, got {channels}",
                weight.name
            ));
        }
        let kernel = attributes.ints("kernel_shape");
        if kernel.is_some_and(|kernel| *kernel != [height as i64, width as i64]) {
            return Err(format!("attribute `kernel_shape` differs from the shape of `{}`", weight.name));
        }
        let window = window(attributes, [height, width])?;
        let points = height * width;
        // OIHW to OHWI.
        let to_ohwi = |values: &[f32]| -> Vec<f32> {
            let filters = values.chunks((points * group_channels).max(1));
            let one = |filter: &[f32]| -> Vec<f32> {
                (0..points * group_channels)
                    .map(|index| filter[index % group_channels * points + index / group_channels])
                    .collect()
            };
            filters.flat_map(one).collect()
        };
        let weight = self.trainable(&weight, &[filters, height, width, group_channels], to_ohwi);
        self.builder.set_file_order(weight, Some(FileOrder::ChannelsFirst));
        let op = Convolution { window, groups, epilogue: Elementwise::default() };
        let result = self.builder.add(Op::Convolution(op), &[image, weight])?;
        let view = self.as_image(result);
        let Some(bias) = node.input.get(2).filter(|name| !name.is_empty()) else {
            return Ok(Value::View(view));
        };
        let mut bias = self.weight(bias)?;
        if bias.file_shape != [filters] {
            return Err(format!("`{}`: expected shape [{filters}], got {:?}", bias.name, bias.file_shape));
        }
        bias.tensor.sizes = vec![filters, 1, 1];
        self.apply_operand(&view, &Operand::Weight(bias), ElementwiseStep::Bias).map(Value::View)
    }

    pub fn pool(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let pooling = if node.op_type == "MaxPool" { Pooling::Max } else { Pooling::Mean };
        let window = window(attributes, attributes.int_pair("kernel_shape", 0)?)?;
        if attributes.int("ceil_mode", 0) != 0 {
            return Err("attribute `ceil_mode` other than 0 is not supported".into());
        }
        if window.dilation != [1, 1] {
            return Err("attribute `dilations`: dilated pooling is not supported".into());
        }
        let counts_padding = pooling != Pooling::Mean || attributes.int("count_include_pad", 0) != 0;
        if !counts_padding && window.padding != [0, 0] {
            return Err("attribute `count_include_pad` = 0 with padding is not supported".into());
        }
        let (image, _) = self.image(node.input.first().map_or("", String::as_str))?;
        let pooled = self.builder.add(Op::Pool(Pool { pooling, window }), &[image])?;
        Ok(Value::View(self.as_image(pooled)))
    }

    /// `Resize` by an integer factor, repeating each pixel.
    pub fn resize(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let sampling = NearestSampling::of(node, attributes, self.version)?;
        let (image, [height, width, channels]) = self.image(node.input.first().map_or("", String::as_str))?;
        let given = |index: usize| node.input.get(index).filter(|name| !name.is_empty()).cloned();
        let scales = given(if node.op_type == "Resize" { 2 } else { 1 });
        let factors: Vec<f32> = match (scales, given(3)) {
            (Some(scales), _) => match self.weight(&scales)?.tensor.data {
                TensorData::Floats(values) => values.to_vec(),
                _ => Vec::new(),
            },
            (None, Some(sizes)) => {
                let Value::Constant(sizes) = self.value(&sizes)? else {
                    return Err("its sizes depend on the rows".into());
                };
                let own = [1, channels, height, width];
                let sizes = sizes.ints()?.iter().zip(own);
                sizes
                    .map(|(size, own)| match size {
                        SymInt::TimesRows(size) | SymInt::Known(size) => *size as f32 / own as f32,
                    })
                    .collect()
            }
            (None, None) => Vec::new(),
        };
        let &[rows, channel_scale, vertical, horizontal] = factors.as_slice() else {
            return Err("it has no scales or sizes of rank 4".into());
        };
        let is_supported = |factor: f32| factor >= 1.0 && factor.fract() == 0.0 && factor <= 64.0;
        if rows != 1.0 || channel_scale != 1.0 || !is_supported(vertical) || !is_supported(horizontal) {
            return Err("only integer scales of height and width are supported".into());
        }
        for (side, factor) in [(height, vertical), (width, horizontal)] {
            sampling.check(side, factor as usize)?;
        }
        // The gradient of mean pooling repeats each value over its window, divided by the window's size.
        let size = [vertical as usize, horizontal as usize];
        let window = Window { stride: size, ..Window::new(size) };
        let image_sizes = [height * size[0], width * size[1], channels];
        let op = PoolGradient { pooling: Pooling::Mean, window, image: image_sizes };
        let repeated = self.builder.add(Op::PoolGradient(op), &[image])?;
        let node =
            self.builder.add(Op::elementwise(ElementwiseStep::Scale(vertical * horizontal)), &[repeated])?;
        Ok(Value::View(self.as_image(node)))
    }
}
