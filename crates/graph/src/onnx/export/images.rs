//! Convolution, pooling and upsampling in NCHW.

use super::Exporter;
use super::writer::{int, ints, string};
use crate::graph::NodeId;
use crate::onnx::proto::AttributeProto;
use crate::op::convolution::Convolution;
use crate::op::elementwise::ElementwiseStep;
use crate::op::pool::{Pool, PoolGradient, Pooling};
use crate::op::window::Window;
use thalweg_core::{Error, FileOrder, Result};

/// The window attributes of `Conv` and the pooling operators.
fn window_attributes(window: &Window) -> Vec<AttributeProto> {
    let int64 = |numbers: [usize; 2]| numbers.map(|number| number as i64);
    let [vertical, horizontal] = int64(window.padding);
    vec![
        ints("kernel_shape", &int64(window.size)),
        ints("strides", &int64(window.stride)),
        ints("pads", &[vertical, horizontal, vertical, horizontal]),
        ints("dilations", &int64(window.dilation)),
    ]
}

impl Exporter<'_> {
    /// `Conv`, including the bias that follows.
    pub fn convolution(&mut self, id: NodeId, convolution: &Convolution) -> Result<()> {
        let [read, weight] = [self.graph.node(id).inputs[0], self.graph.node(id).inputs[1]];
        let image = self.nchw(read)?;
        let weight = self.filters(weight)?;
        let bias = self.following_step(id, |step| step == ElementwiseStep::Bias);
        let mut inputs = vec![image, weight];
        if let Some(bias) = bias {
            inputs.push(self.tensor(self.graph.node(bias).inputs[1])?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut attributes = window_attributes(&convolution.window);
        attributes.push(int("group", convolution.groups as i64));
        let name = self.writer.node("Conv", &inputs, attributes);
        self.set_nchw(bias.unwrap_or(id), name);
        Ok(())
    }

    /// The weight of a convolution in ONNX's OIHW order.
    fn filters(&mut self, id: NodeId) -> Result<String> {
        let (name, sizes, values) = self.parameter(id)?;
        if sizes.len() != 4 {
            return Err(Error::internal(format!("{name} is not the weight of a convolution")));
        }
        let order = FileOrder::ChannelsFirst;
        let (name, sizes, values) = (name.to_string(), order.shape(sizes), order.to_file(sizes, values));
        Ok(self.writer.tensor(&name, &sizes, &values))
    }

    pub fn pool(&mut self, id: NodeId, pool: &Pool) -> Result<()> {
        let read = self.graph.node(id).inputs[0];
        let full = Window::new([self.graph.shape(read).sizes()[0], self.graph.shape(read).sizes()[1]]);
        let image = self.nchw(read)?;
        let (operator, attributes) = match pool.pooling {
            Pooling::Max => ("MaxPool", window_attributes(&pool.window)),
            Pooling::Mean if pool.window == full => ("GlobalAveragePool", vec![]),
            Pooling::Mean => {
                let mut attributes = window_attributes(&pool.window);
                attributes.push(int("count_include_pad", 1));
                ("AveragePool", attributes)
            }
        };
        let name = self.writer.node(operator, &[&image], attributes);
        self.set_nchw(id, name);
        Ok(())
    }

    /// Upsampling is the gradient of mean pooling times the window's size: each pixel repeated over the window.
    pub fn upsample(&mut self, id: NodeId, gradient: &PoolGradient) -> Result<()> {
        let [height, width] = gradient.window.size;
        let points = (height * width) as f32;
        if gradient.pooling != Pooling::Mean || gradient.window.stride != gradient.window.size {
            return Err(Error::internal("there is no ONNX operator for the gradient of a pooling"));
        }
        let image = self.nchw(self.graph.node(id).inputs[0])?;
        let scales = self.writer.constant(&[4], &[1.0, 1.0, height as f32, width as f32]);
        let attributes = vec![
            string("mode", "nearest"),
            string("coordinate_transformation_mode", "asymmetric"),
            string("nearest_mode", "floor"),
        ];
        let mut name = self.writer.node("Resize", &[&image, "", &scales], attributes);
        let scaled = self.following_step(id, |step| step == ElementwiseStep::Scale(points));
        if scaled.is_none() {
            let share = self.writer.constant(&[1], &[1.0 / points]);
            name = self.writer.node("Mul", &[&name, &share], vec![]);
        }
        self.set_nchw(scaled.unwrap_or(id), name);
        Ok(())
    }
}
