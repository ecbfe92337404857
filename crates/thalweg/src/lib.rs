//! Placeholder.
pub mod command;
pub mod view;
