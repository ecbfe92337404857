//! Ranks in processes of their own, driven by cases that run them as threads.
//!
//! Where a transport needs real processes, each process owns a real transport and [`serve`]s it over a Unix socket.
//! The threads of the suite hold [`RemoteTransport`]s, which forward every call and return every response. What is
//! tested are the processes: a rank whose thread makes no calls makes none there, and dropping its
//! [`RemoteTransport`] drops its transport.

mod client;
mod protocol;
mod server;

pub use client::{ProcessPool, RemoteTransport};
pub use server::{TransportFactory, serve};
