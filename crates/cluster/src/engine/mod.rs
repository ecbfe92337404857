//! Who starts the ranks: this command itself (`local`), or a launcher that left its variables (`environment`); or
//! nobody does, and they are threads in this process, in real time or in virtual time (`threads`), where they may
//! also come and go (`simulated`).

pub mod environment;
pub mod local;
mod process;
mod program;
pub mod simulated;
pub mod threads;
