"""Prints optimizers.txt for optimizer_golden.rs: ten steps of every rule in PyTorch.

Needs torch (made with 2.15). PyTorch lacks LARS and LAMB; they are implemented here from their papers. Every input is a
multiple of 1/64, exact in single precision.
"""

import torch

torch.set_num_threads(1)
SHAPES = [(5,), (3, 4)]


def numbers(count, seed):
    return [((seed * 37 + i * 53) % 97 - 48) / 64 for i in range(count)]


def tensors(seed):
    flat, parts = torch.tensor(numbers(17, seed)), []
    for shape in SHAPES:
        size = torch.Size(shape).numel()
        parts.append(flat[:size].clone().reshape(shape))
        flat = flat[size:]
    return parts


def show(name, values):
    print(f"{name}:", *(f"{value:.9g}" for value in values))


class Lars(torch.optim.Optimizer):
    """You, Gitman and Ginsburg 2017, algorithm 1; vectors take plain steps."""

    def __init__(self, parameters, lr, momentum, weight_decay, trust):
        super().__init__(parameters, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                v = self.state[w].setdefault("v", torch.zeros_like(w))
                rate, decay = group["lr"], 0.0
                if w.dim() > 1:
                    decay = group["weight_decay"]
                    rate *= group["trust"] * w.norm() / (w.grad.norm() + decay * w.norm())
                v.mul_(group["momentum"]).add_(rate * (w.grad + decay * w))
                w.sub_(v)


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, algorithm 2; vectors take the steps of Adam."""

    def __init__(self, parameters, lr, betas, eps, weight_decay):
        super().__init__(parameters, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), eps = group["betas"], group["eps"]
            for w in group["params"]:
                state = self.state[w]
                m = state.setdefault("m", torch.zeros_like(w))
                v = state.setdefault("v", torch.zeros_like(w))
                t = state["t"] = state.get("t", 0) + 1
                m.mul_(beta1).add_((1 - beta1) * w.grad)
                v.mul_(beta2).add_((1 - beta2) * w.grad**2)
                r = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)
                ratio = 1.0
                if w.dim() > 1:
                    r = r + group["weight_decay"] * w
                    ratio = w.norm() / r.norm()
                w.sub_(group["lr"] * ratio * r)


def ten_steps(name, make, correct=lambda parameters: None, penalty=None, schedule=None):
    parameters = [tensor.requires_grad_() for tensor in tensors(100)]
    rule = make(parameters)
    rates = schedule and schedule(rule)
    for step in range(1, 11):
        rule.zero_grad()
        loss = sum((w * g).sum() for w, g in zip(parameters, tensors(step)))
        if penalty:
            loss = loss + sum(penalty(w) for w in parameters)
        loss.backward()
        correct(parameters)
        rule.step()
        if rates:
            rates.step()
    show(name, [value for w in parameters for value in w.flatten().tolist()])


def rates(name, make):
    rule = torch.optim.SGD([torch.zeros(1)], lr=0.4)
    schedule, seen = make(rule), []
    for _ in range(11):
        seen.append(rule.param_groups[0]["lr"])
        rule.step()
        schedule.step()
    show(name, seen)


optim, clip = torch.optim, torch.nn.utils
ten_steps("sgd", lambda p: optim.SGD(p, lr=0.1))
ten_steps("momentum", lambda p: optim.SGD(p, lr=0.1, momentum=0.9))
ten_steps("nesterov", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True))
ten_steps("adagrad", lambda p: optim.Adagrad(p, lr=0.1))
ten_steps("rmsprop", lambda p: optim.RMSprop(p, lr=0.01))
ten_steps("adam", lambda p: optim.Adam(p, lr=0.001))
ten_steps("adamw", lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1))
ten_steps("lars", lambda p: Lars(p, lr=0.5, momentum=0.9, weight_decay=0.01, trust=0.02))
ten_steps("lamb", lambda p: Lamb(p, lr=0.01, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.1))
ten_steps("sgd, decay", lambda p: optim.SGD(p, lr=0.1, weight_decay=0.1))
ten_steps("nesterov, decay", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1))
ten_steps("adagrad, decay", lambda p: optim.Adagrad(p, lr=0.1, weight_decay=0.1))
ten_steps("rmsprop, decay", lambda p: optim.RMSprop(p, lr=0.01, weight_decay=0.1))
ten_steps("adam, decay", lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1))
ten_steps(
    "momentum, clipped by value",
    lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    correct=lambda p: clip.clip_grad_value_(p, 0.3),
)
ten_steps(
    "momentum, clipped by norm",
    lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    correct=lambda p: clip.clip_grad_norm_(p, 1.0),
)
ten_steps(
    "momentum, penalized and clipped",
    lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    correct=lambda p: clip.clip_grad_norm_(p, 1.0),
    penalty=lambda w: 0.05 * w.abs().sum() + 0.1 * w.square().sum() / 2,
)
ten_steps(
    "adamw, cosine",
    lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.1),
    schedule=lambda rule: optim.lr_scheduler.CosineAnnealingLR(rule, T_max=9, eta_min=0.01),
)
rates("StepLR", lambda rule: optim.lr_scheduler.StepLR(rule, step_size=3, gamma=0.5))
rates("CosineAnnealingLR", lambda rule: optim.lr_scheduler.CosineAnnealingLR(rule, T_max=10, eta_min=0.02))
