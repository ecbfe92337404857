//! The coordinator's role in this process: whether it has it, and how it takes it.
//!
//! Rank 0 takes it at the beginning. When the process that has it ends, or leaves and gives it up, the launcher asks another
//! one to take it, and tells the rest where that one listens.

use crate::beacon::Beacon;
use crate::coordinator::{Charge, Voice, preside};
use crate::engine::environment::{Meeting, Place};
use crate::judgement::Rules;
use crate::rank::Emit;
use crate::rendezvous::message::Member;
use crate::rendezvous::welcome;
use crate::session::{Terms, unix_time};
use crate::uplink::{self, Uplink, Wish};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Level};
use thalweg_core::{Error, Kind, Result};

/// What it takes to take the role.
pub(crate) struct Role {
    pub(crate) place: Place,
    pub(crate) terms: Terms,
    pub(crate) beacon: Arc<Beacon>,
    pub(crate) emit: Emit,
    pub(crate) uplink: Option<Arc<Uplink>>,
    /// The members of the last generation.
    pub(crate) members: Arc<Mutex<Vec<Member>>>,
    /// The last generation.
    pub(crate) held: Mutex<Held>,
}

/// What changes.
#[derive(Default)]
pub(crate) struct Held {
    /// Processes that have ended.
    gone: BTreeSet<usize>,
    /// Ranks that left with the coordinator before this one.
    left: BTreeSet<usize>,
    /// Where the coordinator of this process hears of them.
    sender: Option<Sender<usize>>,
    threads: Vec<JoinHandle<()>>,
}

impl Role {
    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what the launcher asks of this process from now on.
    pub(crate) fn heed(self: &Arc<Role>, wishes: Receiver<Wish>) {
        let role = Arc::clone(self);
        std::thread::spawn(move || {
            for wish in wishes {
                match wish {
                    Wish::Gone(number) => role.miss(number),
                    Wish::Convene { gone, left } => {
                        let mut held = role.lock();
                        held.gone = gone.into_iter().collect();
                        held.left = left.into_iter().collect();
                        drop(held);
                        if let Err(error) = role.take() {
                            role.beacon.condemn(error);
                        }
                    }
                    _ => {}
                }
            }
        });
    }

    /// The port to listen on: the job's, or where the coordinator before this one did.
    fn port(&self) -> u16 {
        let known = self.uplink.as_ref().and_then(|uplink| uplink.coordinator(0, Duration::ZERO).ok());
        let before = known.and_then(|(_, address)| address.parse::<SocketAddr>().ok());
        if self.terms.port == 0 { before.map_or(0, |address| address.port()) } else { self.terms.port }
    }

    fn miss(&self, number: usize) {
        let mut held = self.lock();
        held.gone.insert(number);
        if let Some(sender) = &held.sender {
            // It may have left its role by now.
            let _ = sender.send(number);
        }
    }

    /// Opens the port and takes the role in a thread of its own; says where it listens.
    pub(crate) fn take(&self) -> Result<String> {
        let (address, meeting) = match &self.place.meeting {
            Meeting::ByLauncher => (SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.port()), None),
            Meeting::At { host, port } => (
                listening_address(host, *port, self.place.local, &self.terms.token)?,
                Some(format!("{host}:{port}")),
            ),
        };
        let listener =
            welcome::listen(address, &self.terms.token).or_else(|error| match self.place.meeting {
                // Whoever does not hear of another port from a launcher would have found this one.
                Meeting::ByLauncher if self.terms.port == 0 => {
                    welcome::listen(SocketAddr::new(address.ip(), 0), &self.terms.token)
                }
                _ => Err(error),
            })?;
        let bound = listener.local_addr().map_err(|error| Error::io("no local address", &error))?;
        let mut held = self.lock();
        let known: Vec<usize> = self
            .members
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|member| member.rank)
            .collect();
        let (expected, after) =
            if known.is_empty() { ((0..self.place.world).collect(), 0) } else { (known, 1) };
        let (left, expected): (Vec<usize>, Vec<usize>) =
            expected.into_iter().partition(|number| held.left.contains(number));
        let (lost, expected): (Vec<usize>, Vec<usize>) =
            expected.into_iter().partition(|number| held.gone.contains(number));
        let terms = &self.terms;
        let charge = Charge {
            own: self.place.rank,
            expected,
            lost,
            left,
            launcher: uplink::launcher(),
            after,
            world: self.place.world,
            job: terms.job,
            model: terms.model.clone(),
            text: terms.text.clone(),
            token: terms.token.clone(),
            rules: Rules {
                elastic: terms.elastic,
                limits: terms.limits,
                step_deadline: terms.step_deadline,
                prepare_deadline: terms.prepare_deadline,
                epoch: unix_time(),
            },
        };
        let [emit, told, report] = [(); 3].map(|()| Arc::clone(&self.emit));
        let (sender, gone) = channel();
        held.sender = Some(sender);
        let voice = Voice {
            beacon: Arc::clone(&self.beacon),
            say: Box::new(move |message| emit(Event::Notice { level: Level::Warning, message })),
            report: Box::new(move |event| report(event)),
            gone,
            resign: Box::new(move |left| told(Event::Resigned { left })),
        };
        held.threads.push(std::thread::spawn(move || preside(listener, charge, voice)));
        drop(held);
        (self.emit)(Event::Listening { address: bound.to_string() });
        Ok(meeting.unwrap_or_else(|| bound.to_string()))
    }

    /// Stays in the role until the others have left.
    pub(crate) fn see_out(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while self.lock().threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Where the coordinator listens: where it is told, or on all addresses if others come from elsewhere with a token (a
/// host's own name often leads to an address that only it can use).
fn listening_address(host: &str, port: u16, local: bool, token: &[u8]) -> Result<SocketAddr> {
    let resolved = (host, port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    let address = resolved.ok_or_else(|| {
        Error::new(Kind::Rendezvous, format!("the name {host} does not resolve"))
            .hint("MASTER_ADDR must be a name or an address of the host that runs rank 0")
    })?;
    let explicit_loopback =
        host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    if local || explicit_loopback || token.is_empty() {
        return Ok(address);
    }
    Ok(SocketAddr::new(
        if address.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() },
        port,
    ))
}
