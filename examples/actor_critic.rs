//! Reinforcement learning: actor and critic have an optimizer each, and one update moves both.
//! Run: `cargo run --example actor_critic`.
//! Prints the mean reward, which rises from 0.5 to nearly 1, and the mean error of the critic.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::{Linear, Module, VarBuilder, VarMap, linear, ops};
use candle_headroom::{AdamW, AdaptiveTrainer, optim::Both};

type Batch = (Tensor, Tensor, Tensor, Tensor); // states, actions, rewards, advantages

struct Networks {
    actor: Linear,
    critic: Linear,
    seen: usize,
}

impl Networks {
    /// A method with `&mut self` that returns the loss of both, and the critic's errors beside it.
    fn loss(&mut self, (states, actions, rewards, advantages): Batch) -> Result<(Tensor, Tensor)> {
        self.seen += states.dim(0)?;
        let log = ops::log_softmax(&self.actor.forward(&states)?, 1)?;
        let actor = (log.gather(&actions, 1)? * advantages)?.mean_all()?.neg()?;
        let errors = (self.critic.forward(&states)? - rewards)?.sqr()?;
        Ok(((actor + errors.mean_all()?)?, errors.detach())) // attached, they keep activations
    }
}

fn main() -> candle_headroom::Result<()> {
    let (actor_vars, critic_vars) = (VarMap::new(), VarMap::new());
    let vb = |varmap: &VarMap| VarBuilder::from_varmap(varmap, DType::F32, &Device::Cpu);
    let mut networks = Networks {
        actor: linear(4, 2, vb(&actor_vars).pp("actor"))?,
        critic: linear(4, 1, vb(&critic_vars).pp("critic"))?,
        seen: 0,
    };
    let actor = AdamW::builder(&actor_vars).learning_rate(0.1);
    let critic = AdamW::builder(&critic_vars).learning_rate(0.02);
    let both = Both::new(("actor", actor.build()?), ("critic", critic.build()?))?;
    let mut trainer = AdaptiveTrainer::builder(both).build()?;

    for step in 1..=100 {
        // Action 1 is right if the first feature is positive, and action 0 otherwise.
        let states = Tensor::randn(0f32, 1., (256, 4), &Device::Cpu)?; // [samples, features]
        let right = states.narrow(1, 0, 1)?.gt(0f32)?; // u8 [samples, 1]
        let chances = ops::softmax(&networks.actor.forward(&states)?, 1)?.narrow(1, 1, 1)?;
        let actions = chances.rand_like(0., 1.)?.lt(&chances)?;
        let rewards = actions.eq(&right)?.to_dtype(DType::F32)?;
        // Before the step and for the whole batch, because the closure gets parts of it.
        let advantages = (&rewards - networks.critic.forward(&states)?)?.detach();
        let reward = rewards.mean_all()?.to_scalar::<f32>()?;
        let batch = (states, actions, rewards, advantages);
        let (_, errors) = trainer.step_with(&batch, |batch, _| networks.loss(batch))?;
        if step % 20 == 0 {
            let error = Tensor::cat(&errors, 0)?.mean_all()?.to_scalar::<f32>()?;
            let seen = networks.seen;
            println!("{seen} samples: reward {reward:.2}, error {error:.3}");
        }
    }
    Ok(())
}
