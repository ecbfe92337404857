//! The coordinator's role in this process: whether it has it, and how it takes it over.
//!
//! Rank 0 takes it at the start. When the process that has it exits, or leaves and hands it over, the launcher commands
//! another one to take it, and sends the others its address.

use crate::coordinator::{CoordinatorCallbacks, CoordinatorConfig, run_coordinator};
use crate::engine::environment::{RankEnvironment, RendezvousEndpoint};
use crate::launcher_connection::{self, LauncherCommand, LauncherConnection};
use crate::membership_policy::MembershipConfig;
use crate::rank::Emit;
use crate::rank_config::{RankConfig, Token};
use crate::rank_status::RankStatus;
use crate::rendezvous::listen::{self, ListenConfig};
use crate::rendezvous::local_token;
use crate::rendezvous::message::Member;
use crate::session::unix_time;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Level};
use thalweg_core::{Error, Result};

/// Everything needed to take the role.
pub(crate) struct CoordinatorRole {
    pub(crate) environment: RankEnvironment,
    pub(crate) config: RankConfig,
    /// Set once the token is known.
    pub(crate) token: Token,
    pub(crate) rank_status: Arc<RankStatus>,
    pub(crate) emit: Emit,
    pub(crate) launcher: Option<Arc<LauncherConnection>>,
    /// The members of the last generation.
    pub(crate) members: Arc<Mutex<Vec<Member>>>,
    pub(crate) state: Mutex<RoleState>,
}

#[derive(Default)]
pub(crate) struct RoleState {
    /// Ranks whose processes have exited.
    exited: BTreeSet<usize>,
    /// Ranks that left with the last coordinator.
    left: BTreeSet<usize>,
    /// Passes exits on to the coordinator of this process.
    sender: Option<Sender<usize>>,
    threads: Vec<JoinHandle<()>>,
}

impl CoordinatorRole {
    fn lock(&self) -> std::sync::MutexGuard<'_, RoleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that executes the launcher's commands.
    pub(crate) fn follow(self: &Arc<CoordinatorRole>, commands: Receiver<LauncherCommand>) {
        let role = Arc::clone(self);
        std::thread::spawn(move || {
            for command in commands {
                match command {
                    LauncherCommand::RankExited(id) => role.on_exit(id),
                    LauncherCommand::TakeCoordinatorRole { exited, left } => {
                        let mut state = role.lock();
                        state.exited = exited.into_iter().collect();
                        state.left = left.into_iter().collect();
                        drop(state);
                        if let Err(error) = role.start() {
                            role.rank_status.abort(error);
                        }
                    }
                    _ => {}
                }
            }
        });
    }

    /// The port to listen on: the job's, or that of the last coordinator.
    fn port(&self) -> u16 {
        let known =
            self.launcher.as_ref().and_then(|launcher| launcher.await_coordinator(0, Duration::ZERO).ok());
        let before = known.and_then(|(_, address)| address.parse::<SocketAddr>().ok());
        if self.config.port == 0 { before.map_or(0, |address| address.port()) } else { self.config.port }
    }

    fn on_exit(&self, id: usize) {
        let mut state = self.lock();
        state.exited.insert(id);
        if let Some(sender) = &state.sender {
            // The coordinator may have ended.
            let _ = sender.send(id);
        }
    }

    /// Opens the port and runs the coordinator in a thread; returns its address.
    pub(crate) fn start(&self) -> Result<String> {
        self.start_failed(None)
    }

    /// The same after the job has `failed` before its start: the coordinator only refuses the ranks that join.
    pub(crate) fn start_failed(&self, failed: Option<Error>) -> Result<String> {
        let (config, warnings) = (&self.config, Arc::clone(&self.emit));
        let warn = move |message| warnings(Event::Notice { level: Level::Warning, message });
        let listener = match &self.environment.endpoint {
            RendezvousEndpoint::At { host, port, last } => {
                let (local, deadline) = (self.environment.local, config.join_deadline);
                listen::open(
                    &ListenConfig { host, ports: *port..=*last, local, token: &config.token, deadline },
                    &warn,
                )?
            }
            _ => {
                let (here, port) = (Ipv4Addr::LOCALHOST.into(), self.port());
                // Ranks that get the address from a launcher find any port.
                listen::first_free(here, port..=port).or_else(|error| match config.port {
                    0 => listen::first_free(here, 0..=0),
                    _ => Err(error),
                })?
            }
        };
        let bound = listener.local_addr().map_err(|error| Error::io("no local address", &error))?;
        let token = self.job_token()?;
        // Ranks without a token of their user's get this one from here.
        let offer = match config.token.is_empty() {
            true => Some(local_token::offer(bound, &token)?),
            false => None,
        };
        let mut state = self.lock();
        let known: Vec<usize> = self
            .members
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|member| member.rank)
            .collect();
        let (expected, after) =
            if known.is_empty() { ((0..self.environment.world).collect(), 0) } else { (known, 1) };
        let (left, expected): (Vec<usize>, Vec<usize>) =
            expected.into_iter().partition(|id| state.left.contains(id));
        let (lost, expected): (Vec<usize>, Vec<usize>) =
            expected.into_iter().partition(|id| state.exited.contains(id));
        let coordinator = CoordinatorConfig {
            own: self.environment.rank,
            expected,
            lost,
            left,
            launcher: launcher_connection::launcher_pid(),
            after,
            world: self.environment.world,
            job: config.job,
            run: self.environment.run.clone(),
            model: config.model.clone(),
            data: config.data.clone(),
            text: config.text.clone(),
            token,
            offer,
            membership: MembershipConfig {
                elastic: config.elastic,
                limits: config.limits,
                servers: config.servers.clone(),
                step_deadline: config.step_deadline,
                prepare_deadline: config.prepare_deadline,
                epoch: unix_time(),
            },
            failed,
        };
        let [warnings, resigned, events] = [(); 3].map(|()| Arc::clone(&self.emit));
        let (sender, exited) = channel();
        state.sender = Some(sender);
        let callbacks = CoordinatorCallbacks {
            rank_status: Arc::clone(&self.rank_status),
            warn: Box::new(move |message| warnings(Event::Notice { level: Level::Warning, message })),
            emit: Box::new(move |event| events(event)),
            exited,
            resign: Box::new(move |left| resigned(Event::Resigned { left })),
        };
        state.threads.push(std::thread::spawn(move || run_coordinator(listener, coordinator, callbacks)));
        drop(state);
        (self.emit)(Event::Listening { address: bound.to_string() });
        Ok(match &self.environment.endpoint {
            RendezvousEndpoint::At { host, .. } => format!("{host}:{}", bound.port()),
            _ => bound.to_string(),
        })
    }

    /// The user's token, or the one that the ranks of this host have.
    fn job_token(&self) -> Result<Vec<u8>> {
        if self.token.get().is_none() {
            // Only the first coordinator has no earlier one to get it from.
            let _ = self.token.set(local_token::fresh()?.into_bytes());
        }
        Ok(self.token.get().cloned().unwrap_or_default())
    }

    /// Waits up to `timeout` until the other ranks have left the coordinator of this process.
    pub(crate) fn serve_until_empty(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        while self.lock().threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
