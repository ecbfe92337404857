//! Collectives as data.
//!
//! An algorithm is a pure function from (rank, world) to a [`Schedule`]: what this rank sends and receives, step by
//! step, over numbered chunks of its buffer. One [`Executor`] runs any schedule on any transport, with any
//! [`Operator`] on any [`Element`]; [`checker`] proves it symbolically; each algorithm states its [`Cost`] beside it.
//! A new algorithm is one file with a schedule and a cost, and a row in [`way`], or for an all-reduce in [`algorithm`].
//!
//! | operation      | algorithms                                                                                |
//! |----------------|-------------------------------------------------------------------------------------------|
//! | all-reduce     | [`ring`], [`binomial`], [`doubling`], [`halving`], [`direct`], [`hierarchical`]           |
//! | reduce         | [`ring`], [`binomial`], [`direct`], [`hierarchical`]                                      |
//! | broadcast      | [`ring`], [`binomial`], [`direct`], [`hierarchical`]                                      |
//! | reduce-scatter | [`ring`], [`halving`], [`direct`], [`hierarchical`]                                       |
//! | all-gather     | [`ring`], [`doubling`], [`direct`], [`hierarchical`]                                      |
//! | all-to-all     | [`pairwise`]                                                                              |
//! | barrier        | [`doubling`]                                                                              |
//!
//! [`Goal`] is such an operation with the schedule that is taken when nobody chooses; [`gather`] uses them for byte strings
//! whose lengths only their owners know. [`bracketed`] is apart from it: an all-reduce of
//! several terms per rank whose order of additions is data itself ([`Brackets`]).
//! So is [`native`], the all-reduce of a transport that has one; a [`Method`] is either that or a schedule.
//!
//! A [`Circle`] is a group of some ranks, among whom any schedule can run. Several operations at once are a [`Flight`], over
//! pieces of one buffer that stays the caller's, or are [`Underway`], with memory of their own.

pub mod algorithm;
pub mod binomial;
pub mod bracketed;
pub mod brackets;
pub mod checker;
pub mod circle;
pub mod cost;
pub mod direct;
pub mod doubling;
pub mod executor;
pub mod flight;
pub mod fold;
pub mod forecast;
pub mod gather;
pub mod goal;
pub mod halving;
pub mod hierarchical;
pub mod method;
pub mod native;
pub mod operation;
pub mod operator;
pub mod pairwise;
pub mod partition;
pub mod ring;
pub mod schedule;
pub mod underway;
pub mod way;

pub use algorithm::Algorithm;
pub use bracketed::Bracketed;
pub use brackets::{Brackets, Slots, Term};
pub use circle::Circle;
pub use cost::Cost;
pub use executor::Executor;
pub use flight::{Flight, Guest};
pub use gather::all_gather;
pub use goal::Goal;
pub use method::Method;
pub use operation::{Operation, Progress};
pub use operator::{Element, Max, Min, Operator, Sum};
pub use partition::{Counts, Partition, chunk_range};
pub use schedule::{Action, Chunks, ReceiveChunks, Schedule, SendChunks, Step};
pub use underway::{Ticket, Underway};
pub use way::{Seat, Way};
