//! Convolution, pooling and upsampling, with channels first.

use super::Exporter;
use super::writer::{int, ints, string};
use crate::graph::NodeId;
use crate::onnx::proto::Attribute;
use crate::op::convolution::Convolution;
use crate::op::elementwise::Step;
use crate::op::pool::{Pool, PoolGradient, Pooling};
use crate::op::window::Window;
use thalweg_core::{Error, FileOrder, Result};

/// How a window lies on an image.
fn settings(window: &Window) -> Vec<Attribute> {
    let whole = |numbers: [usize; 2]| numbers.map(|number| number as i64);
    let [down, across] = whole(window.padding);
    vec![
        ints("kernel_shape", &whole(window.size)),
        ints("strides", &whole(window.stride)),
        ints("pads", &[down, across, down, across]),
        ints("dilations", &whole(window.dilation)),
    ]
}

impl Exporter<'_> {
    /// Filters and the bias behind them.
    pub fn convolution(&mut self, id: NodeId, convolution: &Convolution) -> Result<()> {
        let [read, weight] = [self.graph.node(id).inputs[0], self.graph.node(id).inputs[1]];
        let image = self.image(read)?;
        let weight = self.filters(weight)?;
        let bias = self.followed_by(id, |step| step == Step::Bias);
        let mut inputs = vec![image, weight];
        if let Some(bias) = bias {
            inputs.push(self.whole(self.graph.node(bias).inputs[1])?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut attributes = settings(&convolution.window);
        attributes.push(int("group", convolution.groups as i64));
        let name = self.writer.node("Conv", &inputs, attributes);
        self.put_image(bias.unwrap_or(id), name);
        Ok(())
    }

    /// The weight of a convolution, each filter with its channels first.
    fn filters(&mut self, id: NodeId) -> Result<String> {
        let (name, sizes, values) = self.parameter(id)?;
        if sizes.len() != 4 {
            return Err(Error::internal(format!("{name} is not the weight of a convolution")));
        }
        let order = FileOrder::ChannelsFirst;
        let (name, sizes, values) = (name.to_string(), order.shape(sizes), order.to_file(sizes, values));
        Ok(self.writer.tensor(&name, &sizes, &values))
    }

    /// The largest or the mean of each window.
    pub fn pool(&mut self, id: NodeId, pool: &Pool) -> Result<()> {
        let read = self.graph.node(id).inputs[0];
        let whole = Window::new([self.graph.shape(read).sizes()[0], self.graph.shape(read).sizes()[1]]);
        let image = self.image(read)?;
        let (operator, attributes) = match pool.pooling {
            Pooling::Largest => ("MaxPool", settings(&pool.window)),
            Pooling::Mean if pool.window == whole => ("GlobalAveragePool", vec![]),
            Pooling::Mean => {
                let mut attributes = settings(&pool.window);
                attributes.push(int("count_include_pad", 1));
                ("AveragePool", attributes)
            }
        };
        let name = self.writer.node(operator, &[&image], attributes);
        self.put_image(id, name);
        Ok(())
    }

    /// The way back from a mean spreads each point over a square; times the square's points, it repeats it.
    pub fn upsample(&mut self, id: NodeId, spread: &PoolGradient) -> Result<()> {
        let [down, across] = spread.window.size;
        let points = (down * across) as f32;
        if spread.pooling != Pooling::Mean || spread.window.stride != spread.window.size {
            return Err(Error::internal("there is no ONNX operator for a pooling's way back"));
        }
        let image = self.image(self.graph.node(id).inputs[0])?;
        let scales = self.writer.constant(&[4], &[1.0, 1.0, down as f32, across as f32]);
        let attributes = vec![
            string("mode", "nearest"),
            string("coordinate_transformation_mode", "asymmetric"),
            string("nearest_mode", "floor"),
        ];
        let mut name = self.writer.node("Resize", &[&image, "", &scales], attributes);
        let scaled = self.followed_by(id, |step| step == Step::Scale(points));
        if scaled.is_none() {
            let share = self.writer.constant(&[1], &[1.0 / points]);
            name = self.writer.node("Mul", &[&name, &share], vec![]);
        }
        self.put_image(scaled.unwrap_or(id), name);
        Ok(())
    }
}
