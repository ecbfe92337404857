//! Starts ranks: as worker processes of this command (`local`), under another launcher that left its variables
//! (`environment`), as threads of this process (`threads`), or on a simulated network in virtual time (`simulated`).

pub mod environment;
pub mod local;
mod process;
mod program;
pub mod simulated;
pub mod threads;
