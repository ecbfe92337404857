//! Queries to the coordinator of a running job: its job file, and its status.

use super::JoinConfig;
use super::connect_to_rank0::{RetryRound, connect_to_rank0};
use super::coordinator_errors::is_disconnect;
use super::message::{ControlRequest, ControlResponse, Status, receive, send};
use super::timed::{HANDSHAKE_TIMEOUT, Timed};
use std::io;
use std::time::{Duration, Instant};
use thalweg_core::error::os_message;
use thalweg_core::{Error, Kind, Result};

/// Requests the job file and a free rank. Retries if the connection closes, because the coordinator's role may have
/// moved.
pub fn query_job(
    join_config: &JoinConfig,
    coordinator: &str,
    notify: &dyn Fn(String),
) -> Result<(String, usize)> {
    let start = Instant::now();
    loop {
        let connection =
            connect_to_rank0(join_config, coordinator, start, &mut RetryRound::default(), &|| false, notify)?;
        let control = connection.stream;
        let mut timed = Timed::new(&control, HANDSHAKE_TIMEOUT);
        let answer =
            send(&mut timed, &ControlRequest::Job).and_then(|()| receive::<ControlResponse>(&mut timed));
        let error = match answer {
            Ok(ControlResponse::Job { text, number }) => return Ok((text, number)),
            Ok(ControlResponse::Refused(error)) => return Err(error),
            Ok(_) => io::Error::new(io::ErrorKind::InvalidData, "unexpected response"),
            Err(error) if is_disconnect(&error) && start.elapsed() < join_config.deadline => {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            Err(error) => error,
        };
        return Err(Error::new(
            Kind::Rendezvous,
            format!("{coordinator} did not send its job: {}", os_message(&error)),
        )
        .hint("is it a job of this version of thalweg?"));
    }
}

/// Requests the status of a job.
pub fn query_status(join_config: &JoinConfig, coordinator: &str) -> Result<Status> {
    let connection = connect_to_rank0(
        join_config,
        coordinator,
        Instant::now(),
        &mut RetryRound::default(),
        &|| false,
        &|_| {},
    )?;
    let mut timed = Timed::new(&connection.stream, HANDSHAKE_TIMEOUT);
    let answer =
        send(&mut timed, &ControlRequest::Status).and_then(|()| receive::<ControlResponse>(&mut timed));
    let why = match answer {
        Ok(ControlResponse::Status(status)) => return Ok(*status),
        Ok(ControlResponse::Refused(error)) => return Err(error),
        Ok(_) => "unexpected response".to_string(),
        Err(error) => os_message(&error),
    };
    let message = format!("{coordinator} did not send its status: {why}");
    Err(Error::new(Kind::Rendezvous, message).hint("is it a job of this version of thalweg?"))
}
