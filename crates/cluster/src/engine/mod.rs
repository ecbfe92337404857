//! Who starts the ranks: this command itself (`local`), or a launcher that left its variables (`environment`).

pub mod environment;
pub mod local;
