//! The conformance suite on the transports of this crate.

use thalweg_testkit::transport::{Loopback, Memory, Mixed, Shared, Simulated, Unordered};
use thalweg_testkit::transport_conformance;

transport_conformance!(mem, Memory);
transport_conformance!(tcp, Loopback);
transport_conformance!(shm, Shared);
transport_conformance!(mixed, Mixed);
transport_conformance!(sim, Simulated, virtual time, some idle: Unordered);
