//! Collectives as data.
//!
//! An algorithm is a pure function from (rank, world) to a [`Schedule`]: what this rank sends and receives, step by
//! step, over numbered chunks of its buffer. One [`Executor`] runs any schedule on any transport, with any
//! [`Operator`] on any [`Element`]; [`checker`] proves it symbolically; each algorithm states its [`Cost`] beside it.
//! A new algorithm is one file with a schedule and a cost, and an entry in [`algorithm`].
//!
//! | collective     | algorithms                                                                                |
//! |----------------|-------------------------------------------------------------------------------------------|
//! | all-reduce     | [`ring`], [`binomial`], [`doubling`], [`halving`], [`direct`], [`hierarchical`]           |
//! | reduce         | [`ring`], [`binomial`], [`direct`], [`hierarchical`]                                      |
//! | broadcast      | [`ring`], [`binomial`], [`direct`], [`hierarchical`]                                      |
//! | reduce-scatter | [`ring`], [`halving`], [`direct`], [`hierarchical`]                                       |
//! | all-gather     | [`ring`], [`doubling`], [`direct`], [`hierarchical`]                                      |
//! | all-to-all     | [`pairwise`]                                                                              |
//! | barrier        | [`doubling`]                                                                              |
//!
//! [`Collective`] is the kind of a collective, with its default algorithm. [`byte_collectives`] are those of byte strings
//! of different lengths. Two all-reduces are not schedules: [`native`], that of the transport itself, and [`reproducible`],
//! whose order of additions is data ([`ReductionTree`]) and does not depend on the world size.
//!
//! A [`Group`] is a subset of the ranks. [`nonblocking`] and [`BucketSet`] run several operations at once.

pub mod algorithm;
pub mod binomial;
mod bucket_set;
pub mod byte_collectives;
pub mod checker;
mod cost;
pub mod cost_model;
pub mod direct;
pub mod doubling;
mod executor;
mod fold;
mod group;
pub mod halving;
pub mod hierarchical;
mod kind;
pub mod native;
pub mod nonblocking;
pub mod operation;
pub mod operator;
pub mod pairwise;
pub mod partition;
pub mod reduction_tree;
pub mod reproducible;
pub mod ring;
mod schedule;
pub mod tree_aggregate;

pub use algorithm::{Algorithm, AlgorithmEntry, AllReduceMethod, RankView};
pub use bucket_set::{BlockingOperation, BucketSet};
pub use byte_collectives::all_gather;
pub use cost::Cost;
pub use executor::Executor;
pub use group::Group;
pub use kind::Collective;
pub use nonblocking::{NonblockingTransport, OperationId};
pub use operation::Progress;
pub use operator::{Element, Max, Min, Operator, Sum};
pub use partition::chunk_range;
pub use reduction_tree::{PartialSums, ReductionTree, Term};
pub use reproducible::ReproducibleAllReduce;
pub use schedule::{Action, Chunks, ReceiveChunks, Schedule, SendChunks, Step};
