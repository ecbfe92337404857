//! Decisions of the first server, which all servers carry out in the same order.

use super::TaskOf;
use crate::work::pool::Worker;
use serde::{Deserialize, Serialize};
use thalweg_graph::optimizer::Moment;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Ticket {
    /// The update of a task, whose rows are this share of a step, has its effect alone.
    Apply { of: TaskOf, at: At, share: f32 },
    /// Those of these tasks have their effect together, in this order, times `scale`.
    ApplyAll { of: Vec<TaskOf>, at: At, scale: f32 },
    /// It has none.
    Drop(TaskOf),
    /// A worker reads the parameters, with the effect that its own updates would have alone, which wait for their clocks.
    Read { worker: Worker, number: u64, own: Vec<(TaskOf, At)> },
    /// All meet, if this is still the generation.
    Meet { generation: u32 },
}

/// The moment of an update.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct At {
    updates: u64,
    rate: f32,
}

impl From<Moment> for At {
    fn from(Moment { updates, rate }: Moment) -> At {
        At { updates, rate }
    }
}

impl From<At> for Moment {
    fn from(At { updates, rate }: At) -> Moment {
        Moment { updates, rate }
    }
}
