//! A custom network and in-memory data on two workers: classifies points inside and outside a circle.
//!
//! Run it with `cargo run --release --example own_model`.

use thalweg::{Activation, Data, Network, Targets, Trainer};

fn main() -> thalweg::Result<()> {
    let report = Trainer::new("circle")
        .set("engine.workers=2")
        .set("train.epochs=40")
        .set("train.optimizer.lr=0.02")
        .data(|job| {
            let grid =
                (0..60).flat_map(|x| (0..60).map(move |y| (x as f32 / 30.0 - 1.0, y as f32 / 30.0 - 1.0)));
            let points: Vec<(f32, f32)> = grid.collect();
            let inside = points.iter().map(|(x, y)| u32::from(x * x + y * y < 0.5)).collect();
            let features = points.iter().flat_map(|&(x, y)| [x, y]).collect();
            Data::in_memory(2, features, Targets::Classes(inside), 0.2, job.train.seed)
        })
        .model(|schema| {
            Network::with_inputs(schema.width())
                .dense(32, Activation::Tanh)
                .dense(schema.outputs(), Activation::None)
                .classification()
        })
        .run()?;
    println!("accuracy {:.3} with {} steps on 2 workers", report.last["accuracy"], report.steps);
    Ok(())
}
