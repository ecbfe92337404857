//! A worker's line to the launcher that started it: events up, wishes down.
//!
//! The launcher gives each worker one end of a socket pair as standard input. Its end of file means that the launcher
//! is gone, and with it the job: the worker stops after its step, with a checkpoint.

use crate::beacon::Beacon;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_core::event::Record;
use thalweg_core::{Error, Kind, Result};

/// The variable that tells a process that its standard input is such a line.
pub const VARIABLE: &str = "THALWEG_UPLINK";

/// What a launcher says to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// Rank 0 listens here.
    Coordinator(String),
    /// Stop after this step and write a checkpoint.
    Stop,
}

/// A worker's end of the line.
pub struct Uplink {
    stream: Mutex<UnixStream>,
    coordinator: Mutex<Receiver<String>>,
}

impl Uplink {
    /// The line on standard input, if a launcher started this process.
    pub fn open(beacon: Arc<Beacon>) -> Result<Option<Arc<Uplink>>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let broken = |error: std::io::Error| Error::io("no line to the launcher", &error);
        let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(broken)?);
        let reader = stream.try_clone().map_err(broken)?;
        let (sender, coordinator) = channel();
        std::thread::spawn(move || listen(reader, &sender, &beacon));
        Ok(Some(Arc::new(Uplink { stream: Mutex::new(stream), coordinator: Mutex::new(coordinator) })))
    }

    /// Sends an event up. If the launcher is gone, nobody is left to hear it.
    pub fn send(&self, record: &Record) {
        if let Ok(mut line) = serde_json::to_vec(record) {
            line.push(b'\n');
            let _ = self.stream.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
        }
    }

    /// Where rank 0 listens, as the launcher says.
    pub fn coordinator(&self, deadline: Duration) -> Result<String> {
        let receiver = self.coordinator.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.recv_timeout(deadline).map_err(|_| {
            Error::new(
                Kind::Rendezvous,
                format!("rank 0 did not open its port within {} s", deadline.as_secs_f64()),
            )
        })
    }
}

fn listen(reader: UnixStream, coordinator: &Sender<String>, beacon: &Beacon) {
    for line in BufReader::new(reader).lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(Wish::Coordinator(address)) => {
                // The receiver lives as long as the line.
                let _ = coordinator.send(address);
            }
            Ok(Wish::Stop) => beacon.request_stop(),
            Err(_) => {}
        }
    }
    beacon.request_stop();
}
