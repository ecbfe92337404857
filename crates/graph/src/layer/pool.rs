//! `pool max|mean SIZE [stride N] [pad N]` and `pool global`.

use super::arguments::LayerArguments;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use crate::op::Op;
use crate::op::pool::Pooling;
use crate::op::window::Window;
use std::fmt;
use thalweg_core::spec::nearest::unknown;

pub(super) const USAGE: &str = "pool max|mean SIZE|HEIGHTxWIDTH [stride N] [pad N]\" or \"pool global";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolLayer {
    /// The default stride is the window's size.
    Windows(Pooling, Window),
    /// The mean over the whole image, per channel.
    Global,
}

impl PoolLayer {
    pub(super) fn parse(mut arguments: LayerArguments<'_>) -> Result<PoolLayer, String> {
        let pooling = match arguments.next() {
            Some("max") => Pooling::Max,
            Some("mean") => Pooling::Mean,
            Some("global") => return arguments.finish().map(|()| PoolLayer::Global),
            Some(argument) => {
                let reason = unknown("pooling", argument, ["max", "mean", "global"].into_iter());
                return Err(arguments.error(reason));
            }
            None => return Err(arguments.error("the kind of pooling is missing")),
        };
        let size = arguments.pair("size of the window")?;
        let stride = arguments.keyword("stride", 1)?.map_or(size, |stride| [stride; 2]);
        let padding = arguments.keyword("pad", 0)?.unwrap_or(0);
        arguments.finish()?;
        Ok(PoolLayer::Windows(pooling, Window { stride, padding: [padding; 2], ..Window::new(size) }))
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        let pool = |pooling, window| Op::Pool(crate::op::pool::Pool { pooling, window });
        match (*self, builder.shape(input).sizes()) {
            (PoolLayer::Windows(pooling, window), _) => builder.add(pool(pooling, window), &[input]),
            (PoolLayer::Global, &[height, width, channels]) => {
                let full = Window::new([height, width]);
                let means = builder.add(pool(Pooling::Mean, full), &[input])?;
                builder.reshape(means, &[channels])
            }
            (PoolLayer::Global, _) => {
                let got = builder.shape(input);
                Err(format!("expected an image (height x width x channels), got {got}"))
            }
        }
    }
}

impl fmt::Display for PoolLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolLayer::Windows(pooling, window) = self else { return write!(f, "pool global") };
        let name = if *pooling == Pooling::Max { "max" } else { "mean" };
        let [height, width] = window.size;
        write!(f, "pool {name} {height}x{width}")?;
        if window.stride != window.size {
            write!(f, " stride {}", window.stride[0])?;
        }
        if window.padding[0] != 0 {
            write!(f, " pad {}", window.padding[0])?;
        }
        Ok(())
    }
}
