//! The coordinator's role in this process: whether it has it, and how it takes it.
//!
//! Rank 0 takes it at the beginning. When the process that has it ends, or leaves and gives it up, the launcher asks another
//! one to take it, and tells the rest where that one listens.

use crate::beacon::Beacon;
use crate::coordinator::{Charge, Voice, preside};
use crate::engine::environment::{Meeting, Place};
use crate::judgement::Rules;
use crate::rank::Emit;
use crate::rendezvous::listen::{self, Site};
use crate::rendezvous::local_token;
use crate::rendezvous::message::Member;
use crate::session::{Terms, Token, unix_time};
use crate::uplink::{self, Uplink, Wish};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Level};
use thalweg_core::{Error, Result};

/// What it takes to take the role.
pub(crate) struct Role {
    pub(crate) place: Place,
    pub(crate) terms: Terms,
    /// The shared secret, once it is known.
    pub(crate) token: Token,
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
        self.take_after(None)
    }

    /// The same after the job has `failed` before it began: to tell those who come.
    pub(crate) fn take_after(&self, failed: Option<Error>) -> Result<String> {
        let (terms, speaker) = (&self.terms, Arc::clone(&self.emit));
        let say = move |message| speaker(Event::Notice { level: Level::Warning, message });
        let listener = match &self.place.meeting {
            Meeting::At { host, port, last } => {
                let (local, deadline) = (self.place.local, terms.join_deadline);
                listen::open(
                    &Site { host, ports: *port..=*last, local, token: &terms.token, deadline },
                    &say,
                )?
            }
            _ => {
                let (here, port) = (Ipv4Addr::LOCALHOST.into(), self.port());
                // Who hears of the port from a launcher finds another one as well.
                listen::first_free(here, port..=port).or_else(|error| match terms.port {
                    0 => listen::first_free(here, 0..=0),
                    _ => Err(error),
                })?
            }
        };
        let bound = listener.local_addr().map_err(|error| Error::io("no local address", &error))?;
        let token = self.secret()?;
        // Ranks without a token of their user's get this one from here.
        let offer = match terms.token.is_empty() {
            true => Some(local_token::offer(bound, &token)?),
            false => None,
        };
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
        let charge = Charge {
            own: self.place.rank,
            expected,
            lost,
            left,
            launcher: uplink::launcher(),
            after,
            world: self.place.world,
            job: terms.job,
            run: self.place.run.clone(),
            model: terms.model.clone(),
            data: terms.data.clone(),
            text: terms.text.clone(),
            token,
            offer,
            rules: Rules {
                elastic: terms.elastic,
                limits: terms.limits,
                step_deadline: terms.step_deadline,
                prepare_deadline: terms.prepare_deadline,
                epoch: unix_time(),
            },
            failed,
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
        Ok(match &self.place.meeting {
            Meeting::At { host, .. } => format!("{host}:{}", bound.port()),
            _ => bound.to_string(),
        })
    }

    /// The shared secret: the user's, or the one that the ranks of this host have.
    fn secret(&self) -> Result<Vec<u8>> {
        if self.token.get().is_none() {
            // Only the first coordinator meets nobody who could have told it.
            let _ = self.token.set(local_token::fresh()?.into_bytes());
        }
        Ok(self.token.get().cloned().unwrap_or_default())
    }

    /// Stays in the role until the others have left.
    pub(crate) fn see_out(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while self.lock().threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
