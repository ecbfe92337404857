//! Parameter servers: ranks that hold the parameters for the others.

use super::DialValue::Text;
use super::{AVERAGED_STATISTICS, Dial, LOSS_OF_A_SERVER, OWN_ROWS, Preset, UPDATE_RULE};

pub(super) const PRESETS: &[Preset] = &[Preset {
    name: "parameter-server",
    system: "parameter server (Langer et al. 2020, sections 3.3.1 and 3.3.3)",
    version: None,
    dials: &[
        Dial::fixed("strategy.optimization", Text("centralized")),
        Dial::default("strategy.scheduling.kind", Text("bsp")),
        Dial::fixed("strategy.exchange.kind", Text("parameter-server")),
        OWN_ROWS,
    ],
    summary: "Workers push their gradients to a server rank, which applies them and sends the parameters back: once all have arrived or, with strategy.scheduling.kind = \"async\", each as it arrives.",
    when: "To compare with all-reduce, or when the optimizer's state should exist only once.",
    covers: &[
        ("one optimizer state, on the server", "strategy.optimization"),
        ("an update once all gradients have arrived, or for each as it arrives", "strategy.scheduling.kind"),
        ("push of gradients, pull of parameters", "strategy.exchange.kind"),
        AVERAGED_STATISTICS,
        ("lost workers: the others go on", "a_lost_worker_of_a_server_is_survived"),
        (UPDATE_RULE, "a_step_with_servers_is_a_step_with_all_reduce"),
    ],
    missing: &[LOSS_OF_A_SERVER],
}];
