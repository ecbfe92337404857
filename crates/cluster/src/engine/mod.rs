//! Who starts the ranks: this command itself (`local`), or a launcher that left its variables (`environment`); or
//! nobody does, and they are threads in this process, in real time or in virtual time (`threads`).

pub mod environment;
pub mod local;
mod process;
pub mod threads;
