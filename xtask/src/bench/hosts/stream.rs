//! A plain TCP stream between two hosts: the goodput of a link without any protocol.

use super::network::Network;
use crate::command::Outcome;
use clap::Args;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PORT: u16 = 29_400;
/// The start of a stream, while its congestion window grows, is not counted.
const WARM_UP: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(20);

/// One end of the stream, started by this program on the hosts.
#[derive(Args)]
pub struct Arguments {
    /// Address of the receiver; without it this is the receiver
    #[arg(long)]
    to: Option<SocketAddr>,
    /// Duration
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

/// Runs one end; the receiver prints bytes per second.
pub fn run(arguments: &Arguments) -> Outcome {
    let failed = |error: std::io::Error| format!("the stream broke: {error}");
    let duration = WARM_UP + Duration::from_secs_f64(arguments.seconds);
    let mut buffer = vec![0; 1 << 16];
    match arguments.to {
        Some(address) => {
            let mut stream = connect(address)?;
            let begin = Instant::now();
            while begin.elapsed() < duration {
                stream.write_all(&buffer).map_err(failed)?;
            }
        }
        None => {
            let listener = TcpListener::bind(("0.0.0.0", PORT)).map_err(failed)?;
            let (mut stream, _) = listener.accept().map_err(failed)?;
            stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
            let (begin, mut counted, mut last) = (Instant::now(), 0, WARM_UP);
            loop {
                let count = stream.read(&mut buffer).map_err(failed)?;
                if count == 0 {
                    break;
                }
                if begin.elapsed() > WARM_UP {
                    (counted, last) = (counted + count, begin.elapsed());
                }
            }
            println!("{}", counted as f64 / (last - WARM_UP).as_secs_f64().max(1e-9));
        }
    }
    Ok(())
}

/// Retries, since the receiver may not listen yet.
fn connect(address: SocketAddr) -> Outcome<TcpStream> {
    let begin = Instant::now();
    loop {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) if begin.elapsed() > TIMEOUT => {
                return Err(format!("cannot connect to {address}: {error}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Bytes per second from one host to another.
pub fn goodput(network: &Network, from: usize, to: usize, seconds: f64) -> Outcome<f64> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let end = |host: usize, arguments: &[&str]| -> Command {
        let mut command = network.command_on(host, &program);
        command.args(["bench", "stream", "--seconds", &seconds.to_string()]).args(arguments);
        command.stdin(Stdio::null());
        command
    };
    let cannot = |error: std::io::Error| format!("cannot start a stream: {error}");
    let receiver = end(to, &[]).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let address = format!("{}:{PORT}", network.address(to));
    let sent = end(from, &["--to", &address]).status().map_err(cannot)?;
    let output = receiver.wait_with_output().map_err(cannot)?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().parse() {
        Ok(goodput) if sent.success() => Ok(goodput),
        _ => Err(format!("the stream from host {from} to host {to} gave no figure: {text}")),
    }
}
