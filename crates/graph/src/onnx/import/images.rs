//! Convolution, pooling and upsampling: channels first in the file, last in memory.

use super::importer::Importer;
use super::item::Item;
use super::sampling::Sampling;
use super::settings::Settings;
use super::view::View;
use super::weights::Operand;
use crate::graph::NodeId;
use crate::onnx::proto::Node;
use crate::op::Op;
use crate::op::convolution::Convolution;
use crate::op::elementwise::{Elementwise, Step};
use crate::op::pool::{Pool, PoolGradient, Pooling};
use crate::op::window::Window;
use thalweg_core::FileOrder;

/// How a window lies on an image, with the same padding on opposite sides.
fn window(settings: Settings<'_>, size: [usize; 2]) -> Result<Window, String> {
    let padding = match settings.ints("pads") {
        None => [0, 0],
        Some(&[top, left, bottom, right]) if top == bottom && left == right => {
            let size = |pad: i64| usize::try_from(pad).ok().filter(|pad| *pad <= 1 << 24);
            match (size(top), size(left)) {
                (Some(top), Some(left)) => [top, left],
                _ => return Err(format!("padding of {top} and {left} makes no sense")),
            }
        }
        Some(pads) => return Err(format!("pads {pads:?}: padding must be the same on opposite sides")),
    };
    match settings.word("auto_pad", "NOTSET").as_str() {
        "NOTSET" | "" => {}
        "VALID" if padding == [0, 0] => {}
        other => return Err(format!("auto_pad {other} is not supported; give the padding as numbers")),
    }
    let (stride, dilation) = (settings.pair("strides", 1)?, settings.pair("dilations", 1)?);
    if stride.contains(&0) || dilation.contains(&0) || size.contains(&0) {
        return Err("a size of 0 makes no sense".into());
    }
    Ok(Window { size, stride, padding, dilation })
}

impl Importer<'_> {
    /// A value as `height x width x channels` in memory, and those three sizes.
    fn image(&mut self, name: &str) -> Result<(NodeId, [usize; 3]), String> {
        let view = self.view(name)?;
        if view.axes.len() != 4 {
            let shape = self.assembly.shape(view.node);
            return Err(format!("expected images (rows x channels x height x width), got {shape}"));
        }
        let (view, _) = self.ending_with(&view, &[2, 3, 1])?;
        let image = [view.size(2)?, view.size(3)?, view.size(1)?];
        Ok((self.sized(view.node, &image)?, image))
    }

    /// A node that holds images, as the file sees them.
    fn as_image(&self, node: NodeId) -> View {
        let mut view = View::new(node, self.assembly.shape(node).sizes());
        let channels = view.axes.remove(3);
        view.axes.insert(1, channels);
        view
    }

    /// `Conv` with its bias.
    pub fn convolution(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let [read, weight] = [0, 1].map(|index| node.input.get(index).cloned().unwrap_or_default());
        let weight = self.weight(&weight)?;
        let &[filters, line, height, width] = weight.own.as_slice() else {
            return Err(format!("`{}`: only convolutions over images are supported", weight.name));
        };
        let (image, [_, _, channels]) = self.image(&read)?;
        let groups = usize::try_from(settings.int("group", 1)).unwrap_or(0);
        if groups.checked_mul(line) != Some(channels) {
            return Err(format!("`{}`: expected {groups} x {line} channels, got {channels}", weight.name));
        }
        let kernel = settings.ints("kernel_shape");
        if kernel.is_some_and(|kernel| *kernel != [height as i64, width as i64]) {
            return Err(format!("attribute `kernel_shape` is not that of `{}`", weight.name));
        }
        let window = window(settings, [height, width])?;
        let points = height * width;
        // Each filter with its channels last.
        let turned = |values: &[f32]| -> Vec<f32> {
            let filters = values.chunks((points * line).max(1));
            let one = |filter: &[f32]| -> Vec<f32> {
                (0..points * line).map(|place| filter[place % line * points + place / line]).collect()
            };
            filters.flat_map(one).collect()
        };
        let weight = self.learned(&weight, &[filters, height, width, line], turned);
        self.assembly.set_file_order(weight, Some(FileOrder::ChannelsFirst));
        let op = Convolution { window, groups, epilogue: Elementwise::default() };
        let result = self.assembly.add(Op::Convolution(op), &[image, weight])?;
        let view = self.as_image(result);
        let Some(bias) = node.input.get(2).filter(|name| !name.is_empty()) else {
            return Ok(Item::View(view));
        };
        let mut bias = self.weight(bias)?;
        if bias.own != [filters] {
            return Err(format!("`{}`: expected {filters} numbers, got sizes {:?}", bias.name, bias.own));
        }
        bias.tensor.sizes = vec![filters, 1, 1];
        self.with_operand(&view, &Operand::Weight(bias), Step::Bias).map(Item::View)
    }

    /// `MaxPool` and `AveragePool`.
    pub fn pool(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let pooling = if node.op_type == "MaxPool" { Pooling::Largest } else { Pooling::Mean };
        let window = window(settings, settings.pair("kernel_shape", 0)?)?;
        if settings.int("ceil_mode", 0) != 0 {
            return Err("attribute `ceil_mode` other than 0 is not supported".into());
        }
        if window.dilation != [1, 1] {
            return Err("attribute `dilations`: dilated pooling is not supported".into());
        }
        let counts_padding = pooling != Pooling::Mean || settings.int("count_include_pad", 0) != 0;
        if !counts_padding && window.padding != [0, 0] {
            return Err("a mean that leaves out the padding (count_include_pad 0) is not supported".into());
        }
        let (image, _) = self.image(node.input.first().map_or("", String::as_str))?;
        let pooled = self.assembly.add(Op::Pool(Pool { pooling, window }), &[image])?;
        Ok(Item::View(self.as_image(pooled)))
    }

    /// `Resize` to a whole multiple, each point repeated.
    pub fn resize(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let sampling = Sampling::of(node, settings, self.version)?;
        let (image, [height, width, channels]) = self.image(node.input.first().map_or("", String::as_str))?;
        let given = |index: usize| node.input.get(index).filter(|name| !name.is_empty()).cloned();
        let scales = given(if node.op_type == "Resize" { 2 } else { 1 });
        let factors: Vec<f32> = match (scales, given(3)) {
            (Some(scales), _) => match self.weight(&scales)?.tensor.data {
                super::tensor::Data::Floats(values) => values.to_vec(),
                _ => Vec::new(),
            },
            (None, Some(sizes)) => {
                let Item::Constant(sizes) = self.item(&sizes)? else {
                    return Err("its sizes are not known".into());
                };
                let own = [1, channels, height, width];
                let wholes = sizes.wholes()?.iter().zip(own);
                wholes
                    .map(|(size, own)| match size {
                        super::tensor::Whole::Rows(size) | super::tensor::Whole::Known(size) => {
                            *size as f32 / own as f32
                        }
                    })
                    .collect()
            }
            (None, None) => Vec::new(),
        };
        let &[rows, depth, down, across] = factors.as_slice() else {
            return Err("its factors are not known".into());
        };
        let whole = |factor: f32| factor >= 1.0 && factor.fract() == 0.0 && factor <= 64.0;
        if rows != 1.0 || depth != 1.0 || !whole(down) || !whole(across) {
            return Err("only whole factors of height and width are supported".into());
        }
        for (side, factor) in [(height, down), (width, across)] {
            sampling.check(side, factor as usize)?;
        }
        // The way back from the mean of a square spreads a number over it, divided by its points.
        let size = [down as usize, across as usize];
        let window = Window { stride: size, ..Window::new(size) };
        let image_sizes = [height * size[0], width * size[1], channels];
        let op = PoolGradient { pooling: Pooling::Mean, window, image: image_sizes };
        let spread = self.assembly.add(Op::PoolGradient(op), &[image])?;
        let node = self.assembly.add(Op::step(Step::Scale(down * across)), &[spread])?;
        Ok(Item::View(self.as_image(node)))
    }
}
