//! Losses and gradients of small networks against PyTorch 2.15 (`golden/pytorch.py` prints the constants).

use thalweg_core::{Batch, Features, Model, NoHooks, Targets};
use thalweg_graph::{Activation, Network, Team};

/// Multiples of 1/64, the same as in the script.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((seed * 37 + i * 53) % 97) as f32 / 64.0 - 0.75).collect()
}

fn assert_close(got: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        assert!((f64::from(*got) - expected).abs() <= tolerance, "{what}: {got}, expected {expected}");
    }
}

/// Loss and gradient (mean over four rows) of a 3-5-`outputs` network.
fn loss_and_gradient(activation: Activation, classes: Option<usize>, threads: usize) -> (f64, Vec<f32>) {
    let hidden = Network::with_inputs(3).dense(5, activation);
    let (network, targets) = match classes {
        Some(count) => {
            (hidden.dense(count, Activation::None).classification(), Targets::Classes(vec![0, 2, 1, 1]))
        }
        None => (hidden.dense(1, Activation::None).regression(), Targets::Values(numbers(4, 11))),
    };
    let mut network = network.unwrap().with_team(Team::eager(threads));
    let sizes = network.layout().tensors().iter().map(|tensor| tensor.len()).enumerate();
    let parameters: Vec<f32> = sizes.flat_map(|(index, len)| numbers(len, 20 + index)).collect();
    let features = Features::Dense(numbers(12, 10));
    let batch = Batch { epoch: 0, rows: (0..4).collect(), width: 3, features, targets };
    let mut gradient = vec![f32::NAN; parameters.len()];
    let tally = network.gradient(&parameters, &batch, 0.25, &mut gradient, &mut NoHooks).unwrap();
    (tally.mean_loss(), gradient)
}

fn check(activation: Activation, classes: Option<usize>, loss: f64, gradient: &[f64]) {
    for threads in [1, 2] {
        let (got_loss, got) = loss_and_gradient(activation, classes, threads);
        assert!((got_loss - loss).abs() < 2e-7, "{activation:?}: {got_loss}, expected {loss}");
        assert_close(&got, gradient, 2e-7, &format!("{activation:?} {classes:?}, {threads} threads"));
    }
}

#[test]
fn relu_networks_match_pytorch() {
    let gradient = &[
        0.102590665,
        -0.241077363,
        0.138486713,
        -0.0328245386,
        0.0406430773,
        0.0489026271,
        0.0,
        0.032872159,
        -0.0383623168,
        -0.184263751,
        -0.109221399,
        0.0,
        -0.0734182075,
        0.0711868554,
        0.14362067,
        0.060318768,
        0.0,
        0.0405460447,
        -0.0537414253,
        -0.0145827606,
        -0.116330326,
        0.0,
        -0.116330326,
        0.018313881,
        0.0552611202,
        0.0107565001,
        -0.0534798987,
        -0.053837046,
        -0.0555305965,
        0.070888795,
        -0.0254472587,
        0.0545298383,
        0.0,
        0.0,
        0.0,
        0.070888795,
        -0.0254472587,
        0.0545298383,
    ];
    check(Activation::Relu, Some(3), 1.09492052, gradient);
    let gradient = &[
        -0.192214966,
        -0.0211949125,
        -0.0408490002,
        -0.00294153299,
        0.0,
        -0.00197728723,
        0.13796705,
        -0.018020153,
        0.00257980824,
        0.0,
        0.00196880102,
        0.00141051412,
        -0.0934418365,
        0.0208121315,
        6.81560487e-05,
        0.0118396394,
        -0.00246592797,
        -0.00157207064,
        0.000564333051,
        -0.00120928511,
        0.0,
        0.0,
        0.0,
        -0.00119973812,
        0.000430675223,
        -0.000922875479,
    ];
    check(Activation::Relu, None, 0.117440626, gradient);
}

#[test]
fn tanh_networks_match_pytorch() {
    let gradient = &[
        0.166273773,
        -0.329192281,
        0.162918508,
        -0.0515873656,
        0.0560141243,
        0.0447173566,
        -0.101163767,
        -0.000943664461,
        0.0639773235,
        -0.195895791,
        -0.0303595662,
        0.188418582,
        -0.0555185899,
        -0.012389943,
        0.139881656,
        -0.0143578053,
        -0.0872548074,
        0.0564622469,
        -0.198301136,
        0.0248540379,
        -0.197964549,
        0.00364851905,
        -0.218607068,
        0.0390295796,
        0.0569645986,
        0.0111434758,
        -0.0314413644,
        -0.0628563017,
        -0.0279462654,
        0.0418972559,
        0.0509314649,
        0.0140584894,
        -0.0391105451,
        -0.0509083495,
        -0.038597472,
        0.0579188243,
        0.0488025025,
        0.0271772072,
    ];
    check(Activation::Tanh, Some(3), 1.22355771, gradient);
    let gradient = &[
        0.409141719,
        0.0347921066,
        0.240474999,
        -0.0927996486,
        -0.167772844,
        0.0259753577,
        -0.213240415,
        0.0252054259,
        -0.141345933,
        0.0702992156,
        -0.170450687,
        -0.0521012098,
        -0.0089297872,
        -0.0820881277,
        0.00744285062,
        0.000773353036,
        0.0109873656,
        -0.0214547403,
        -0.0140280919,
        -0.0413315147,
        0.0285425708,
        -0.00251080282,
        0.038428396,
        -0.0346421972,
        -0.00338315591,
        -0.0586118288,
    ];
    check(Activation::Tanh, None, 0.186085492, gradient);
}

#[test]
fn sigmoid_networks_match_pytorch() {
    let gradient = &[
        -0.00529753417,
        -0.0909484923,
        0.0962460414,
        -0.0259550475,
        -0.00429557636,
        0.0263345167,
        -0.0172748305,
        0.00377944112,
        -0.0213063434,
        -0.0745320618,
        -0.0679610148,
        -0.0136855692,
        -0.0655733794,
        0.0472613983,
        0.0788276494,
        0.0416265056,
        0.0309604034,
        0.0617939457,
        -0.00661782362,
        -0.00823976193,
        -0.00858588144,
        -0.0098736072,
        -0.00716269389,
        0.0231642723,
        -0.00392632093,
        0.0222336389,
        -0.0128902048,
        -0.0115981074,
        -0.0140489209,
        0.0225126408,
        -0.00385441072,
        0.0213052519,
        -0.013671279,
        -0.0107113095,
        -0.0150597552,
        0.0248867869,
        -0.00449275784,
        0.0238795318,
    ];
    check(Activation::Sigmoid, Some(3), 1.03322148, gradient);
    let gradient = &[
        -1.09134436,
        -0.575359344,
        -0.64282608,
        -0.480518758,
        -0.435258657,
        -0.501224458,
        0.194076359,
        -0.0244698487,
        0.153482094,
        -0.0602939799,
        0.121116951,
        0.0150816515,
        -0.0852555856,
        0.0423736386,
        -0.00199778052,
        0.0108531285,
        -0.00543885306,
        0.0106956828,
        -0.0675371587,
        0.032279104,
        -0.00582048669,
        0.0269381162,
        -0.0142993275,
        0.0091571575,
        -0.0519745722,
        0.0261892285,
    ];
    check(Activation::Sigmoid, None, 0.46209234, gradient);
}
