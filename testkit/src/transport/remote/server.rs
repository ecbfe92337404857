//! The side of a rank's process: runs requests on a real transport.

use super::protocol::{FrameKey, Request, Response, receive, send};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use thalweg_comm::transport::{
    Incoming, Interest, IoProgress, MatchMode, Outgoing, Tag, Traffic, Transport, TransportError, WaitState,
};

/// Creates the transport under test in the process of a rank.
pub trait TransportFactory {
    type Transport: Transport;

    /// This process's transport in a group of the first `world` processes; `None` if it is not a member. `peers` are
    /// its connections to the other members.
    fn connect(&mut self, world: usize, peers: Option<Vec<Option<TcpStream>>>) -> Option<Self::Transport>;

    /// Inserts bytes into the stream to a rank.
    fn inject(transport: &mut Self::Transport, to: usize, bytes: &[u8]);
}

/// Runs requests until the other end is closed.
pub fn serve<F: TransportFactory>(rank: usize, socket: &UnixStream, factory: &mut F) -> io::Result<()> {
    let mut served: Option<ServedTransport<F::Transport>> = None;
    loop {
        let request = match receive(socket) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            request => request?,
        };
        let response = match (request, &mut served) {
            (Request::Prepare(world), _) => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                send(socket, &Response::Port(listener.local_addr()?.port()))?;
                if rank >= world {
                    factory.connect(world, None);
                    continue;
                }
                let Request::Connect(ports) = receive(socket)? else {
                    return Err(ErrorKind::InvalidData.into());
                };
                let transport = factory.connect(world, Some(connect_peers(rank, &ports, &listener)?));
                served = transport.map(ServedTransport::new);
                let native = served.as_ref().is_some_and(|served| served.transport.has_native_all_reduce());
                Response::Ready { has_native_all_reduce: native }
            }
            (Request::Inject(to, bytes), Some(served)) => {
                F::inject(&mut served.transport, to, &bytes);
                Response::Done
            }
            (Request::Drop, _) => {
                served = None;
                Response::Done
            }
            (request, Some(served)) => served.run(request),
            (_, None) => return Err(ErrorKind::NotConnected.into()),
        };
        send(socket, &response)?;
    }
}

/// Connects to all lower ranks and accepts all higher ones.
fn connect_peers(rank: usize, ports: &[u16], listener: &TcpListener) -> io::Result<Vec<Option<TcpStream>>> {
    let mut peers: Vec<Option<TcpStream>> = ports.iter().map(|_| None).collect();
    for (peer, port) in ports.iter().enumerate().take(rank) {
        let mut stream = TcpStream::connect(("127.0.0.1", *port))?;
        stream.write_all(&[rank as u8])?;
        peers[peer] = Some(stream);
    }
    for _ in rank + 1..ports.len() {
        let (mut stream, _) = listener.accept()?;
        let mut peer = [0];
        stream.read_exact(&mut peer)?;
        peers[usize::from(peer[0])] = Some(stream);
    }
    Ok(peers)
}

/// A transport and the memory of the frames in progress.
struct ServedTransport<T> {
    transport: T,
    outgoing: HashMap<FrameKey, Vec<u8>>,
    incoming: HashMap<FrameKey, Vec<u8>>,
    sum: Vec<f32>,
    wait: WaitState,
}

impl<T: Transport> ServedTransport<T> {
    fn new(transport: T) -> ServedTransport<T> {
        let wait = WaitState::new(transport.now(), Duration::ZERO);
        let (outgoing, incoming) = (HashMap::new(), HashMap::new());
        ServedTransport { transport, outgoing, incoming, sum: Vec::new(), wait }
    }

    fn run(&mut self, request: Request) -> Response {
        let outcome = match request {
            Request::Send(generation, key, bytes) => return self.send(generation, key, bytes),
            Request::Receive(generation, key, any) => return self.receive(generation, key, any),
            Request::NativeAllReduce(generation, operation, input) => {
                self.sum = input.unwrap_or_else(|| std::mem::take(&mut self.sum));
                let tag = Tag { generation, operation, ..Tag::default() };
                return match self.transport.native_all_reduce(tag, &mut self.sum) {
                    Ok(IoProgress::Complete) => Response::Sum(std::mem::take(&mut self.sum)),
                    progress => response(progress, Vec::new()),
                };
            }
            Request::Wait { fresh, remaining, wanted, moved, aborted } => {
                if fresh {
                    self.wait = WaitState::new(self.transport.now(), remaining);
                }
                if aborted {
                    self.transport.abort_handle().abort();
                }
                self.transport.wait(&mut self.wait, &interests(wanted), moved)
            }
            Request::AdmitGroups => {
                self.transport.admit_groups();
                Ok(())
            }
            Request::TimeoutError(pending) => Err(self.transport.timeout_error(&self.wait, pending)),
            Request::Background(background, unsent) => {
                self.transport.set_background(&interests(background), &unsent);
                Ok(())
            }
            Request::IsHeld(peer) => {
                let held = self.transport.is_held(peer);
                let progress = if held { IoProgress::Blocked } else { IoProgress::Complete };
                return response(Ok(progress), Vec::new());
            }
            Request::Poll(timeout) => self.transport.poll(timeout),
            Request::Traffic => {
                let Traffic { payload_sent, payload_received, total_sent, total_received } =
                    self.transport.traffic();
                return Response::Traffic([payload_sent, payload_received, total_sent, total_received]);
            }
            _ => {
                self.transport.close();
                Ok(())
            }
        };
        outcome.map_or_else(Response::Failed, |()| Response::Done)
    }

    fn send(&mut self, generation: u32, key: FrameKey, bytes: Option<Vec<u8>>) -> Response {
        let (to, group, operation, tensor, chunk, _) = key;
        self.outgoing.extend(bytes.map(|bytes| (key, bytes)));
        let bytes = self.outgoing.get(&key).map_or(&[][..], |bytes| &bytes[..]);
        let tag = Tag { generation, operation, group, tensor };
        let progress = self.transport.send(tag, Outgoing { to, chunk, bytes });
        if progress == Ok(IoProgress::Complete) {
            self.outgoing.remove(&key);
        }
        response(progress, Vec::new())
    }

    fn receive(&mut self, generation: u32, key: FrameKey, any_operation: bool) -> Response {
        let (from, group, operation, tensor, chunk, length) = key;
        let bytes = self.incoming.entry(key).or_insert_with(|| vec![0; length]);
        let tag = Tag { generation, operation, group, tensor };
        let mode = if any_operation { MatchMode::AnyOperation } else { MatchMode::Exact };
        let progress = self.transport.receive(tag, Incoming { from, chunk, bytes }, mode);
        let arrived = if progress == Ok(IoProgress::Complete) { self.incoming.remove(&key) } else { None };
        response(progress, arrived.unwrap_or_default())
    }
}

fn interests(flags: Vec<(bool, bool)>) -> Vec<Interest> {
    flags.into_iter().map(|(read, write)| Interest { read, write }).collect()
}

fn response(progress: Result<IoProgress, TransportError>, bytes: Vec<u8>) -> Response {
    match progress {
        Ok(progress) => Response::Progress(progress, bytes),
        Err(error) => Response::Failed(error),
    }
}
