//! The token of ranks that were started on one host without one.
//!
//! Rank 0 generates it and offers it to processes of its own user on this host, together with its listen address; the
//! other ranks get it before they connect. A process of another user on that port cannot authenticate. Ranks on several
//! hosts need a token from their user.

use crate::linux::{self, FoundOffers, TokenOffer};
use std::net::SocketAddr;
use thalweg_core::error::os_message;
use thalweg_core::{Error, Kind, Result};

/// Smallest length of a token: 16 hexadecimal digits are 64 bits, too many to guess over a network.
pub const MIN_LENGTH: usize = 16;

/// How to set a token, by launcher.
pub const HOW_TO_SET: &str = "set one secret on every host: `export THALWEG_TOKEN=$(openssl rand -hex 16)` before `srun`, \
     `mpirun -x THALWEG_TOKEN` with Open MPI (`-genvlist THALWEG_TOKEN` with MPICH), the same `export` on every host for \
     `torchrun`, `--nnodes` and shells";

/// The error of a listener for ranks on other hosts without a token.
pub fn missing(address: &str) -> Error {
    let message = format!("ranks on other hosts are to connect to {address}, and there is no token");
    Error::new(Kind::Rendezvous, message).hint(HOW_TO_SET)
}

/// Generates a token for one job.
pub fn fresh() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| Error::internal(format!("no randomness: {error}")))?;
    Ok(thalweg_core::hex::encode(&bytes))
}

/// Refuses a user's token that is too short.
pub fn check_length(token: &[u8]) -> Result<()> {
    if token.is_empty() || token.len() >= MIN_LENGTH {
        return Ok(());
    }
    let message =
        format!("THALWEG_TOKEN has {} characters, which can be guessed: {MIN_LENGTH} at least", token.len());
    Err(Error::job(message).hint("make one with `openssl rand -hex 16`, the same for all ranks"))
}

/// Offers the token of the job that listens at this address.
pub fn offer(address: SocketAddr, token: &[u8]) -> Result<TokenOffer> {
    let failed = |error: &dyn std::fmt::Display| {
        let port = address.port();
        let message = format!(
            "cannot offer a token to the ranks of this host, by a Unix socket for port {port}: {error}"
        );
        Error::new(Kind::Rendezvous, message).hint(HOW_TO_SET)
    };
    let message = postcard::to_stdvec(&(address, token)).map_err(|error| failed(&error))?;
    TokenOffer::open(address.port(), &message).map_err(|error| failed(&os_message(&error)))
}

/// The token offered for the job at this address, or why there is none.
pub fn find(address: SocketAddr) -> std::result::Result<Vec<u8>, String> {
    choose(address, &linux::find_token_offers(address.port()))
}

fn choose(address: SocketAddr, offers: &FoundOffers) -> std::result::Result<Vec<u8>, String> {
    let decoded = offers.messages.iter().filter_map(|message| postcard::from_bytes(message).ok());
    let listens_there = |offered: &SocketAddr| {
        let any = offered.ip().is_unspecified();
        offered.port() == address.port()
            && (any || offered.ip().to_canonical() == address.ip().to_canonical())
    };
    let mut tokens = decoded.filter(|(offered, _): &(SocketAddr, Vec<u8>)| listens_there(offered));
    if let Some((_, token)) = tokens.next() {
        return Ok(token);
    }
    Err(match offers {
        FoundOffers { foreign: true, .. } => {
            "another user or container offers tokens for this port; a THALWEG_TOKEN for all ranks tells yours apart".into()
        }
        FoundOffers { unanswered: true, .. } => {
            "a process of this user listens for it, but gives no token; is it stopped, or in another container?".into()
        }
        FoundOffers { .. } => "no process of this user offers its token yet, and THALWEG_TOKEN is not set".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_can_be_guessed_is_refused() {
        assert!(check_length(b"").is_ok(), "none is another matter");
        assert!(check_length(b"0123456789abcdef").is_ok());
        let error = check_length(b"secret").unwrap_err();
        assert_eq!((error.kind, error.exit_code()), (Kind::Job, 2));
        assert!(error.message.contains("6 characters"), "{}", error.message);
        assert!(check_length(fresh().unwrap().as_bytes()).is_ok());
    }

    #[test]
    fn the_offer_for_the_address_is_chosen() {
        let message = |address: &str, token: &[u8]| {
            postcard::to_stdvec(&(address.parse::<SocketAddr>().unwrap(), token)).unwrap()
        };
        let offers = |messages| FoundOffers { messages, ..FoundOffers::default() };
        let both =
            offers(vec![b"garbage".to_vec(), message("127.0.0.2:5", b"b"), message("0.0.0.0:5", b"c")]);
        assert_eq!(choose("127.0.0.2:5".parse().unwrap(), &both).unwrap(), b"b");
        assert_eq!(choose("10.0.0.1:5".parse().unwrap(), &both).unwrap(), b"c");
        let other = offers(vec![message("127.0.0.2:5", b"b")]);
        assert!(
            choose("127.0.0.1:5".parse().unwrap(), &other).unwrap_err().contains("no process of this user")
        );
        let strange = FoundOffers { foreign: true, ..FoundOffers::default() };
        assert!(choose("127.0.0.1:5".parse().unwrap(), &strange).unwrap_err().contains("another user"));
    }
}
