//! EASGD Tree: elastic averaging along the edges of a tree of workers (Zhang et al. 2015; Langer et al., Figure 16).
//!
//! Every worker `i` has a model `w_i` and walks rows of its own at its own speed (`work/local_rows.rs`); there is no
//! server. In each local step:
//!
//! ```text
//! for every model w_j that has arrived, of the parent or of a child:
//!     w_i = w_i - alpha * (w_i - w_j)
//! w_i = update(w_i, gradient of its next rows)
//! every tau_up steps:     send w_i to the parent
//! every tau_down steps:   send w_i to the children
//! ```
//!
//! The root is the published model; those below explore around it. On the lowest level `tau_up` is `tree.up`, just above it
//! `tau_down` is `tree.down`, and both grow by `tree.scale` with each level (`worker_tree.rs`). With alpha at most 1/2 every
//! merge stays between two models, so without gradients all models stay within their convex hull. The rate may adapt
//! (`elastic_rate.rs`).
//!
//! A lost worker takes its model with it, and the others form a tree anew; if it was the root, the next one is. A new worker
//! begins with the model of another one.

#[cfg(test)]
#[path = "tree_easgd_record.rs"]
mod replayed;

use super::elastic_rate::ElasticRate;
#[cfg(test)]
use super::gosgd::recorded;
use super::model_message;
use super::worker_tree::WorkerTree;
use crate::context::Context;
use crate::reduction::Description;
use crate::state::{Spread, State};
use crate::step_report::StepSummary;
use crate::strategy::Strategy;
use crate::work::local_rows::{LocalRows, RowsComputed};
use thalweg_cluster::regroup::MembershipChange;
use thalweg_cluster::{MessageTag, SendOutcome};
use thalweg_core::event::{Event, Level};
use thalweg_core::spec::setting::Auto;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::Optimizer;

const MODEL: MessageTag = MessageTag { number: 1, name: "the model of a parent or child" };

/// Models that a worker may have sent to another and that were not merged: more are skipped.
const MAX_UNMERGED: usize = 2;

pub struct TreeEasgd {
    state: State,
    gradient: Vec<f32>,
    tree: WorkerTree,
    rate: ElasticRate,
    /// Local steps of this worker.
    steps: u64,
}

/// The local steps between two messages over so many levels above those for which `tau` is given.
fn interval(tau: usize, scale: usize, levels: usize) -> u64 {
    (tau as u64).saturating_mul((scale as u64).saturating_pow(levels as u32))
}

impl TreeEasgd {
    pub fn new(optimizer: &Optimizer, parameters: usize) -> TreeEasgd {
        let state = State::of_own_parameters(parameters);
        TreeEasgd {
            state: state.with_columns(optimizer.slot_names(), Spread::PerMember),
            gradient: vec![0.0; parameters],
            tree: WorkerTree::default(),
            rate: ElasticRate::default(),
            steps: 0,
        }
    }

    /// Merges every model that has arrived.
    fn receive_all(&mut self, cx: &mut Context<'_>) -> Result<()> {
        // A worker has a parent and children to move to.
        let alpha = cx.job.merge.alpha(cx.job.tree.children + 1);
        while let Some(message) = cx.rank.world().try_receive_any(MODEL)? {
            let (rows, theirs) = model_message::read_own(message.member, &message.bytes, self.state.len())?;
            let own = self.state.parameters_mut();
            let differences = own.iter().zip(&theirs).map(|(own, theirs)| own - theirs);
            let alpha = self.rate.of(cx.job, alpha, differences);
            own.iter_mut().zip(&theirs).for_each(|(own, theirs)| *own -= alpha * (*own - theirs));
            cx.local_rows.iter_mut().for_each(|local| local.note_received(message.member, rows));
            #[cfg(test)]
            recorded::record(cx.rank.member_id(), || recorded::Recorded::Received(message.member, 0.0));
        }
        Ok(())
    }

    /// Sends the model to the parent and to the children, where it is time. The update before counts in any case: if this
    /// fails, so does the next operation.
    fn send_where_due(&self, cx: &mut Context<'_>, rows: RowsComputed) {
        let (own, dials) = (cx.rank.index(), &cx.job.tree);
        let below = self.tree.depth() - self.tree.level(own);
        let is_due =
            |tau: usize, levels: usize| self.steps.is_multiple_of(interval(tau, dials.scale, levels));
        let up = self.tree.parent(own).filter(|_| is_due(dials.up, below));
        let down = self.tree.children(own).filter(|_| is_due(dials.down, below.saturating_sub(1)));
        for to in up.into_iter().chain(down) {
            let message = model_message::before_own(rows, self.state.parameters());
            if let Ok(SendOutcome::Queued) = cx.rank.world().send(to, MODEL, message) {
                #[cfg(test)]
                recorded::record(cx.rank.member_id(), || {
                    recorded::Recorded::Sent(cx.rank.member_id_at(to), 0.0)
                });
            }
        }
    }
}

/// A depth that no tree of so many workers has, if the job gives one.
pub fn check_depth(job: &JobSpec) -> std::result::Result<(), String> {
    match job.tree.depth {
        Auto::Is(depth) => super::worker_tree::check(job.engine.workers, job.tree.children, depth),
        Auto::Auto => Ok(()),
    }
}

impl Strategy for TreeEasgd {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        self.receive_all(cx)?;
        let computed = cx.compute_own_gradient(self.state.parameters(), &mut self.gradient)?;
        cx.update(cx.own_moment(), &mut self.state, &self.gradient)?;
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || recorded::Recorded::Updated(cx.compute.consumed().to_vec()));
        self.steps += 1;
        let rows = cx.local_rows.as_ref().map(LocalRows::own_rows).unwrap_or_default();
        self.send_where_due(cx, RowsComputed { count: rows.count + computed.rows as u64, ..rows });
        Ok(StepSummary::alone(&cx.report(computed.loss, computed.took, 1)))
    }

    /// All go on from the root's model no more than before: it is published.
    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        cx.rank.world().flush_messages()?;
        cx.rank.world().barrier("messages")?;
        self.receive_all(cx)?;
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || {
            recorded::Recorded::Met(0.0, self.state.parameters().to_vec())
        });
        self.state.publish_own();
        cx.rank.world().broadcast_into("parameters", 0, self.state.published_mut())
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        // What was sent to workers that are lost is lost with them.
        cx.rank.take_undelivered();
        let (workers, dials) = (cx.rank.size(), &cx.job.tree);
        let depth = match dials.depth {
            Auto::Is(depth) => Some(depth),
            Auto::Auto => None,
        };
        self.tree = WorkerTree::of(workers, dials.children, depth);
        self.state.publish_own();
        #[cfg(test)]
        recorded::record(cx.rank.member_id(), || {
            recorded::Recorded::Began(0.0, self.state.parameters().to_vec())
        });
        if cx.rank.index() == 0 && workers > 1 {
            let message =
                format!("{workers} workers form a tree with {} levels below the root", self.tree.depth());
            cx.rank.emit(Event::Notice { level: Level::Info, message });
        }
        Ok(())
    }

    fn message_window(&self, _: &JobSpec) -> Option<usize> {
        Some(MAX_UNMERGED * model_message::own_bytes(self.state.len()))
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}
