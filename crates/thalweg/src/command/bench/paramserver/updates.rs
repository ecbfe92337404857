//! Asynchronous updates: each worker pushes, the servers apply its gradient at once, the worker pulls, and again.

use super::carrier::{Carrier, acknowledge, await_acknowledgements, send_end};
use super::values::{apply, count_updates, fill_update};
use super::{Measurement, ParamserverArgs, Roles};
use std::time::Instant;
use thalweg_cluster::collective::operator::Max;
use thalweg_cluster::{Collective, Rank};
use thalweg_core::{Error, Result};

/// Measures the updates per second of all workers together; all ranks return the same.
pub(super) fn measure(
    args: &ParamserverArgs,
    rank: &mut Rank,
    roles: Roles,
    carrier: &mut dyn Carrier,
) -> Result<Measurement> {
    let serves = roles.servers().contains(&rank.index());
    if serves {
        carrier.write_parameters(0, &mut |parameters| parameters.fill(0.0));
    } else {
        carrier.write_gradient(&mut fill_update);
    }
    let mut parameters = vec![0.0; if serves { 0 } else { roles.length }];
    rank.world().barrier("start")?;
    let begun = Instant::now();
    let updates = match serves {
        true => serve(rank, roles, carrier)?,
        false => work(args.seconds, rank, roles, carrier, &mut parameters)?,
    };
    let mut slowest = [begun.elapsed().as_secs_f64()];
    rank.world().collective(Collective::AllReduce, "times", &mut slowest, &Max)?;
    let mut all = [if serves { 0.0 } else { updates as f64 }];
    rank.world().all_reduce("updates", &mut all)?;
    check_total(all[0] as u64, serves, rank, roles, carrier, &mut parameters)?;
    let per_second = all[0] / slowest[0].max(1e-9);
    let bytes = (2 * roles.length * size_of::<f32>()) as f64;
    Ok(Measurement {
        updates_per_s: Some((per_second * 10.0).round() / 10.0),
        ..Measurement::new(args, roles, "update", per_second * bytes / 1e9)
    })
}

/// Counts this worker's updates.
fn work(
    seconds: f64,
    rank: &mut Rank,
    roles: Roles,
    carrier: &mut dyn Carrier,
    parameters: &mut [f32],
) -> Result<u64> {
    let (begun, mut updates) = (Instant::now(), 0);
    while begun.elapsed().as_secs_f64() < seconds {
        carrier.push(rank)?;
        await_acknowledgements(rank, roles)?;
        let least = updates + 1;
        pull(rank, carrier, parameters, &|count| count >= least)?;
        updates += 1;
    }
    send_end(rank, roles)?;
    Ok(updates)
}

/// Pulls, and checks that each piece has a whole number of updates that is possible.
fn pull(
    rank: &mut Rank,
    carrier: &mut dyn Carrier,
    parameters: &mut [f32],
    is_possible: &dyn Fn(u64) -> bool,
) -> Result<()> {
    let mut wrong = Ok(());
    carrier.pull(rank, parameters, &mut |piece, values| match count_updates(piece.start, values) {
        Ok(count) if values.is_empty() || is_possible(count) => {}
        Ok(count) => {
            wrong = Err(Error::internal(format!("elements {piece:?} were updated {count} times")));
        }
        Err(error) => wrong = Err(error),
    })?;
    wrong
}

/// Applies gradients in the order of their arrival, until all workers are done.
fn serve(rank: &mut Rank, roles: Roles, carrier: &mut dyn Carrier) -> Result<u64> {
    let (mut updates, mut working) = (0, roles.workers);
    while working > 0 {
        let (worker, pushed) = carrier.next_push(rank)?;
        if !pushed {
            working -= 1;
            continue;
        }
        updates += 1;
        carrier.apply(rank, worker, updates, &mut |_, gradient, parameters| apply(parameters, gradient))?;
        acknowledge(rank, worker)?;
        carrier.serve(rank, worker)?;
    }
    Ok(updates)
}

/// Checks that every element has all updates.
fn check_total(
    total: u64,
    serves: bool,
    rank: &mut Rank,
    roles: Roles,
    carrier: &mut dyn Carrier,
    parameters: &mut [f32],
) -> Result<()> {
    if serves {
        return roles.workers().try_for_each(|worker| carrier.serve(rank, worker));
    }
    pull(rank, carrier, parameters, &|count| count == total)
}
