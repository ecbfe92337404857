//! Parameter servers: ranks that hold the parameters for the others.

use super::DialValue::Text;
use super::{AVERAGED_STATISTICS, Dial, LOSS_OF_A_RANK, OWN_ROWS, Preset, UPDATE_RULE};

pub(super) const PRESETS: &[Preset] = &[Preset {
    name: "parameter-server",
    system: "synchronous parameter server (Langer et al. 2020, section 3.3.1)",
    version: None,
    dials: &[
        Dial::fixed("strategy.optimization", Text("centralized")),
        Dial::fixed("strategy.scheduling.kind", Text("bsp")),
        Dial::fixed("strategy.exchange.kind", Text("parameter-server")),
        OWN_ROWS,
    ],
    summary: "Workers push their gradients to rank 0, which sums them, applies the update and sends the parameters back.",
    when: "To compare with all-reduce, or when the optimizer's state should exist only once.",
    covers: &[
        ("one optimizer state, on the server", "strategy.optimization"),
        ("an update once all gradients have arrived", "strategy.scheduling.kind"),
        ("push of gradients, pull of parameters", "strategy.exchange.kind"),
        AVERAGED_STATISTICS,
        (UPDATE_RULE, "a_step_with_a_server_is_a_step_with_all_reduce"),
    ],
    missing: &[
        "several servers, each with a shard of the parameters",
        "asynchronous and bounded-staleness updates",
        LOSS_OF_A_RANK,
    ],
}];
