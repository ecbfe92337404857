//! Ranks in processes of their own, driven by cases that run them as threads.
//!
//! Where a transport needs real processes, each of them owns a real transport and [`serve`]s it over a socket; the suite's
//! threads hold [`Remote`]s, which pass every call on and every answer back. What is tested are the processes: a rank whose
//! thread makes no calls makes none there, and one whose [`Remote`] is dropped has dropped its transport.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use thalweg_comm::transport::{
    Abort, Activity, Cause, Company, Fault, Incoming, Interest, Moved, Outgoing, Tag, Traffic, Transport,
    Vigil,
};

/// The name of a frame under way: peer, group, operation, tensor, chunk and length.
type Frame = (usize, u32, u64, u32, u32, usize);

/// What a rank's process is asked to do.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Be ready to form a group of so many, or to stay out of it.
    Gather(usize),
    /// Connect to the others, who listen at these ports.
    Connect(Vec<u16>),
    Send(u32, Frame, Option<Vec<u8>>),
    Receive(u32, Frame, bool),
    Attend {
        fresh: bool,
        left: Duration,
        wanted: Vec<(bool, bool)>,
        moved: bool,
        aborted: bool,
    },
    AddUp(u32, u64, Option<Vec<f32>>),
    Overdue(Vec<usize>),
    AdmitGroups,
    Glance,
    Forge(usize, Vec<u8>),
    Traffic,
    Close,
    Drop,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Done,
    Port(u16),
    Ready { adds_up: bool },
    Moved(Progress, Vec<u8>),
    Sum(Vec<f32>),
    Traffic([u64; 4]),
    Failed(#[serde(with = "FaultTold")] Fault),
}

#[derive(Serialize, Deserialize)]
enum Progress {
    Nothing,
    Part,
    Whole,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Fault")]
struct FaultTold {
    peer: Option<usize>,
    #[serde(with = "CauseTold")]
    cause: Cause,
    suspects: Vec<usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Cause")]
enum CauseTold {
    Closed,
    Left,
    Io(String),
    Silent { waited: Duration },
    Slow { waited: Duration, quiet: Duration },
    Protocol(String),
    Elsewhere(String),
    Corrupt,
    Reported { by: usize },
    Aborted,
}

fn tell<M: Serialize>(mut line: &UnixStream, message: &M) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    line.write_all(&(bytes.len() as u32).to_le_bytes())?;
    line.write_all(&bytes)
}

fn hear<M: DeserializeOwned>(mut line: &UnixStream) -> io::Result<M> {
    let mut length = [0; 4];
    line.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    line.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// The lines to all processes; one group at a time.
pub struct Stage {
    lines: Vec<Arc<Mutex<UnixStream>>>,
    occupied: Mutex<bool>,
    left: Condvar,
}

impl Stage {
    /// The processes that these lines lead to, by rank.
    pub fn new(lines: Vec<UnixStream>) -> Stage {
        let lines = lines.into_iter().map(|line| Arc::new(Mutex::new(line))).collect();
        Stage { lines, occupied: Mutex::new(false), left: Condvar::new() }
    }

    /// Forms a group of the first `world`, when the one before is gone.
    pub fn connect(&'static self, world: usize) -> Vec<Remote> {
        let occupied = unpoisoned(self.occupied.lock());
        let (mut occupied, timeout) = self
            .left
            .wait_timeout_while(occupied, 10 * super::PLENTY, |occupied| *occupied)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "the group before is still there");
        *occupied = true;
        drop(occupied);
        let lease = Arc::new(Lease(self));
        let gather = |line: &Arc<Mutex<UnixStream>>| tell(&unpoisoned(line.lock()), &Order::Gather(world));
        self.lines.iter().try_for_each(gather).expect("all processes are there");
        let port = |line: &Arc<Mutex<UnixStream>>| match hear(&unpoisoned(line.lock())) {
            Ok(Answer::Port(port)) => port,
            _ => panic!("a process is not ready"),
        };
        let ports: Vec<u16> = self.lines.iter().map(port).collect();
        let order = Order::Connect(ports[..world].to_vec());
        let members = &self.lines[..world];
        members.iter().for_each(|line| tell(&unpoisoned(line.lock()), &order).expect("a process"));
        let remote = |(rank, line): (usize, &Arc<Mutex<UnixStream>>)| Remote {
            rank,
            world,
            adds_up: matches!(hear(&unpoisoned(line.lock())), Ok(Answer::Ready { adds_up: true })),
            line: line.clone(),
            abort: Abort::default(),
            activity: Activity::default(),
            shown: HashSet::new(),
            adding: false,
            start: Instant::now(),
            _lease: lease.clone(),
        };
        members.iter().enumerate().map(remote).collect()
    }

    /// Puts bytes on the way from one rank to another.
    pub fn forge(&self, from: usize, to: usize, bytes: &[u8]) {
        ask(&self.lines[from], &Order::Forge(to, bytes.to_vec())).expect("room for a few bytes");
    }
}

/// The stage is free again when all ranks of a group are gone.
struct Lease(&'static Stage);

impl Drop for Lease {
    fn drop(&mut self) {
        *unpoisoned(self.0.occupied.lock()) = false;
        self.0.left.notify_all();
    }
}

type Locked<'a, T> = MutexGuard<'a, T>;

fn unpoisoned<'a, T>(lock: Result<Locked<'a, T>, PoisonError<Locked<'a, T>>>) -> Locked<'a, T> {
    lock.unwrap_or_else(PoisonError::into_inner)
}

fn ask(line: &Mutex<UnixStream>, order: &Order) -> io::Result<Answer> {
    let line = unpoisoned(line.lock());
    tell(&line, order)?;
    hear(&line)
}

/// A rank whose transport is in another process.
pub struct Remote {
    rank: usize,
    world: usize,
    adds_up: bool,
    line: Arc<Mutex<UnixStream>>,
    abort: Abort,
    activity: Activity,
    /// Frames under way whose bytes are there already.
    shown: HashSet<Frame>,
    /// A sum is under way, whose terms are there already.
    adding: bool,
    start: Instant,
    _lease: Arc<Lease>,
}

impl Remote {
    fn ask(&self, order: &Order) -> Result<Answer, Fault> {
        match ask(&self.line, order) {
            Ok(Answer::Failed(fault)) => Err(fault),
            Ok(answer) => Ok(answer),
            Err(error) => panic!("the process of rank {} is gone: {error}", self.rank),
        }
    }

    fn moved(&self, order: &Order) -> Result<(Moved, Vec<u8>), Fault> {
        match self.ask(order)? {
            Answer::Moved(Progress::Nothing, bytes) => Ok((Moved::Nothing, bytes)),
            Answer::Moved(Progress::Part, bytes) => Ok((Moved::Part, bytes)),
            Answer::Moved(Progress::Whole, bytes) => Ok((Moved::Whole, bytes)),
            _ => panic!("rank {} answers something else", self.rank),
        }
    }
}

impl Transport for Remote {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn send(&mut self, tag: Tag, frame: Outgoing<'_>) -> Result<Moved, Fault> {
        let name = (frame.to, tag.group, tag.operation, tag.tensor, frame.chunk, frame.bytes.len());
        let bytes = self.shown.insert(name).then(|| frame.bytes.to_vec());
        let (moved, _) = self.moved(&Order::Send(tag.generation, name, bytes))?;
        if moved == Moved::Whole {
            self.shown.remove(&name);
        }
        Ok(moved)
    }

    fn receive(&mut self, tag: Tag, frame: Incoming<'_>, company: Company) -> Result<Moved, Fault> {
        let name = (frame.from, tag.group, tag.operation, tag.tensor, frame.chunk, frame.bytes.len());
        let order = Order::Receive(tag.generation, name, company == Company::Several);
        let (moved, bytes) = self.moved(&order)?;
        if moved == Moved::Whole {
            frame.bytes.copy_from_slice(&bytes);
        }
        Ok(moved)
    }

    fn attend(&mut self, vigil: &mut Vigil, wanted: &[Interest], moved: bool) -> Result<(), Fault> {
        let order = Order::Attend {
            fresh: vigil.waited().is_zero(),
            left: vigil.left(),
            wanted: wanted.iter().map(|interest| (interest.read, interest.write)).collect(),
            moved,
            aborted: self.abort.is_aborted(),
        };
        let answer = self.ask(&order);
        vigil.tick(self.now());
        answer.map(drop)
    }

    fn overdue(&self, _: &Vigil, owed: Vec<usize>) -> Fault {
        match self.ask(&Order::Overdue(owed)) {
            Err(fault) => fault,
            Ok(_) => panic!("rank {} answers something else", self.rank),
        }
    }

    fn nudge(&mut self) {}

    fn glance(&mut self) -> Result<(), Fault> {
        self.ask(&Order::Glance).map(drop)
    }

    fn admit_groups(&mut self) {
        drop(self.ask(&Order::AdmitGroups));
    }

    fn adds_up(&self) -> bool {
        self.adds_up
    }

    fn add_up(&mut self, tag: Tag, buffer: &mut [f32]) -> Result<Moved, Fault> {
        let fresh = !std::mem::replace(&mut self.adding, true);
        let order = Order::AddUp(tag.generation, tag.operation, fresh.then(|| buffer.to_vec()));
        match self.ask(&order)? {
            Answer::Sum(sum) => {
                buffer.copy_from_slice(&sum);
                self.adding = false;
                Ok(Moved::Whole)
            }
            Answer::Moved(Progress::Part, _) => Ok(Moved::Part),
            _ => Ok(Moved::Nothing),
        }
    }

    fn traffic(&self) -> Traffic {
        match self.ask(&Order::Traffic) {
            Ok(Answer::Traffic([payload_sent, payload_received, total_sent, total_received])) => {
                Traffic { payload_sent, payload_received, total_sent, total_received }
            }
            _ => panic!("rank {} answers something else", self.rank),
        }
    }

    fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }

    fn activity(&self) -> &Activity {
        &self.activity
    }

    fn close(&mut self) {
        drop(self.ask(&Order::Close));
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // A process that is gone has dropped everything.
        drop(ask(&self.line, &Order::Drop));
    }
}

/// What a process that serves a rank brings along.
pub trait Servant {
    /// The transport under test.
    type Transport: Transport;

    /// Its part of a group of the first `world` processes, if it has one; `peers` leads to the others.
    fn join(&mut self, world: usize, peers: Option<Vec<Option<TcpStream>>>) -> Option<Self::Transport>;

    /// Puts bytes on the way as if they were part of a frame.
    fn forge(transport: &mut Self::Transport, to: usize, bytes: &[u8]);
}

/// Carries out orders until the other end is closed.
pub fn serve<S: Servant>(rank: usize, line: &UnixStream, servant: &mut S) -> io::Result<()> {
    let mut member: Option<Member<S::Transport>> = None;
    loop {
        let order = match hear(line) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            order => order?,
        };
        let answer = match (order, &mut member) {
            (Order::Gather(world), _) => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                tell(line, &Answer::Port(listener.local_addr()?.port()))?;
                if rank >= world {
                    servant.join(world, None);
                    continue;
                }
                let Order::Connect(ports) = hear(line)? else { return Err(ErrorKind::InvalidData.into()) };
                let transport = servant.join(world, Some(connect(rank, &ports, &listener)?));
                member = transport.map(Member::new);
                Answer::Ready { adds_up: member.as_ref().is_some_and(|member| member.transport.adds_up()) }
            }
            (Order::Forge(to, bytes), Some(member)) => {
                S::forge(&mut member.transport, to, &bytes);
                Answer::Done
            }
            (Order::Drop, _) => {
                member = None;
                Answer::Done
            }
            (order, Some(member)) => member.carry_out(order),
            (_, None) => return Err(ErrorKind::NotConnected.into()),
        };
        tell(line, &answer)?;
    }
}

/// Calls all lower ranks and is called by all higher ones.
fn connect(rank: usize, ports: &[u16], listener: &TcpListener) -> io::Result<Vec<Option<TcpStream>>> {
    let mut peers: Vec<Option<TcpStream>> = ports.iter().map(|_| None).collect();
    for (peer, port) in ports.iter().enumerate().take(rank) {
        let mut stream = TcpStream::connect(("127.0.0.1", *port))?;
        stream.write_all(&[rank as u8])?;
        peers[peer] = Some(stream);
    }
    for _ in rank + 1..ports.len() {
        let (mut stream, _) = listener.accept()?;
        let mut caller = [0];
        stream.read_exact(&mut caller)?;
        peers[usize::from(caller[0])] = Some(stream);
    }
    Ok(peers)
}

/// A transport and the memory of the frames under way.
struct Member<T> {
    transport: T,
    outgoing: HashMap<Frame, Vec<u8>>,
    incoming: HashMap<Frame, Vec<u8>>,
    sum: Vec<f32>,
    vigil: Vigil,
}

impl<T: Transport> Member<T> {
    fn new(transport: T) -> Member<T> {
        let vigil = Vigil::new(transport.now(), Duration::ZERO);
        Member { transport, outgoing: HashMap::new(), incoming: HashMap::new(), sum: Vec::new(), vigil }
    }

    fn carry_out(&mut self, order: Order) -> Answer {
        let done = match order {
            Order::Send(generation, name, bytes) => return self.send(generation, name, bytes),
            Order::Receive(generation, name, several) => return self.receive(generation, name, several),
            Order::AddUp(generation, operation, terms) => {
                self.sum = terms.unwrap_or_else(|| std::mem::take(&mut self.sum));
                let moved =
                    self.transport.add_up(Tag { generation, operation, ..Tag::default() }, &mut self.sum);
                return match moved {
                    Ok(Moved::Whole) => Answer::Sum(std::mem::take(&mut self.sum)),
                    moved => answer(moved, Vec::new()),
                };
            }
            Order::Attend { fresh, left, wanted, moved, aborted } => {
                if fresh {
                    self.vigil = Vigil::new(self.transport.now(), left);
                }
                if aborted {
                    self.transport.abort_handle().abort();
                }
                let wanted: Vec<Interest> =
                    wanted.into_iter().map(|(read, write)| Interest { read, write }).collect();
                self.transport.attend(&mut self.vigil, &wanted, moved)
            }
            Order::AdmitGroups => {
                self.transport.admit_groups();
                Ok(())
            }
            Order::Overdue(owed) => Err(self.transport.overdue(&self.vigil, owed)),
            Order::Glance => self.transport.glance(),
            Order::Traffic => {
                let Traffic { payload_sent, payload_received, total_sent, total_received } =
                    self.transport.traffic();
                return Answer::Traffic([payload_sent, payload_received, total_sent, total_received]);
            }
            _ => {
                self.transport.close();
                Ok(())
            }
        };
        done.map_or_else(Answer::Failed, |()| Answer::Done)
    }

    fn send(&mut self, generation: u32, name: Frame, bytes: Option<Vec<u8>>) -> Answer {
        let (to, group, operation, tensor, chunk, _) = name;
        self.outgoing.extend(bytes.map(|bytes| (name, bytes)));
        let bytes = self.outgoing.get(&name).map_or(&[][..], |bytes| &bytes[..]);
        let tag = Tag { generation, operation, group, tensor };
        let moved = self.transport.send(tag, Outgoing { to, chunk, bytes });
        if moved == Ok(Moved::Whole) {
            self.outgoing.remove(&name);
        }
        answer(moved, Vec::new())
    }

    fn receive(&mut self, generation: u32, name: Frame, several: bool) -> Answer {
        let (from, group, operation, tensor, chunk, length) = name;
        let bytes = self.incoming.entry(name).or_insert_with(|| vec![0; length]);
        let tag = Tag { generation, operation, group, tensor };
        let company = if several { Company::Several } else { Company::Alone };
        let moved = self.transport.receive(tag, Incoming { from, chunk, bytes }, company);
        let arrived = if moved == Ok(Moved::Whole) { self.incoming.remove(&name) } else { None };
        answer(moved, arrived.unwrap_or_default())
    }
}

fn answer(moved: Result<Moved, Fault>, bytes: Vec<u8>) -> Answer {
    match moved {
        Ok(Moved::Nothing) => Answer::Moved(Progress::Nothing, bytes),
        Ok(Moved::Part) => Answer::Moved(Progress::Part, bytes),
        Ok(Moved::Whole) => Answer::Moved(Progress::Whole, bytes),
        Err(fault) => Answer::Failed(fault),
    }
}
