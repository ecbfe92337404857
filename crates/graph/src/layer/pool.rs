//! `pool max|mean SIZE [stride N] [pad N]` and `pool global`: one number per window and channel.

use super::words::Words;
use crate::assembly::Assembly;
use crate::graph::NodeId;
use crate::op::Op;
use crate::op::pool::Pooling;
use crate::op::window::Window;
use std::fmt;
use thalweg_core::spec::nearest::unknown;

pub(super) const USAGE: &str = "pool max|mean SIZE|HEIGHTxWIDTH [stride N] [pad N]\" or \"pool global";

/// A pooling layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Windows; they do not overlap unless a stride says so.
    Windows(Pooling, Window),
    /// The mean over the whole image, per channel.
    Global,
}

impl Pool {
    pub(super) fn parse(mut words: Words<'_>) -> Result<Pool, String> {
        let pooling = match words.next() {
            Some("max") => Pooling::Largest,
            Some("mean") => Pooling::Mean,
            Some("global") => return words.finish().map(|()| Pool::Global),
            Some(word) => {
                let reason = unknown("pooling", word, ["max", "mean", "global"].into_iter());
                return Err(words.complaint(reason));
            }
            None => return Err(words.complaint("the kind of pooling is missing")),
        };
        let size = words.pair("size of the window")?;
        let stride = words.setting("stride", 1)?.map_or(size, |stride| [stride; 2]);
        let padding = words.setting("pad", 0)?.unwrap_or(0);
        words.finish()?;
        Ok(Pool::Windows(pooling, Window { stride, padding: [padding; 2], ..Window::new(size) }))
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        let pool = |pooling, window| Op::Pool(crate::op::pool::Pool { pooling, window });
        match (*self, assembly.shape(input).sizes()) {
            (Pool::Windows(pooling, window), _) => assembly.add(pool(pooling, window), &[input]),
            (Pool::Global, &[height, width, channels]) => {
                let whole = Window::new([height, width]);
                let means = assembly.add(pool(Pooling::Mean, whole), &[input])?;
                assembly.reshape(means, &[channels])
            }
            (Pool::Global, _) => {
                let got = assembly.shape(input);
                Err(format!("expected an image (height x width x channels), got {got}"))
            }
        }
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pool::Windows(pooling, window) = self else { return write!(f, "pool global") };
        let name = if *pooling == Pooling::Largest { "max" } else { "mean" };
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
