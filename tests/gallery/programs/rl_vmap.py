"""Policy gradients: environments under vmap are played, sharded, then a step."""

import jax
import jax.numpy as jnp
from jax import lax

from ..setting import FLOAT, grid, key, on, pin

MESH = {"env": 8}
ENVS, STEPS, D, F, ACTIONS = 32, 6, 4, 64, 3


def policy(params, obs):
    return jnp.tanh(obs @ params["hidden"]) @ params["action"]


def play(obs, action):
    """One environment goes on: what is seen next, and the reward."""
    new = 0.9 * jnp.roll(obs, 1) + 0.1 * (action - 1)
    return new, -(new**2).sum()


def build(devices):
    mesh = grid(devices, MESH)

    def rollout(params, rng, obs):
        def turn(obs, rng):
            action = jax.random.categorical(rng, policy(params, obs))
            new, reward = jax.vmap(play)(obs, action)
            return new, (obs, action, reward)

        return lax.scan(turn, obs, jax.random.split(rng, STEPS))

    def loss(params, obs, action, advantage):
        chances = jax.nn.log_softmax(policy(params, obs))
        taken = (jax.nn.one_hot(action, ACTIONS) * chances).sum(-1)
        return -(taken * advantage).mean()

    def step(params, rng, obs):
        rng, own = jax.random.split(rng)
        obs, (observations, actions, rewards) = rollout(params, own, obs)
        later = jnp.cumsum(rewards[::-1], 0)[::-1]
        advantage = later - later.mean()
        grads = jax.grad(loss)(params, observations, actions, advantage)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return params, rng, pin(obs, mesh, "env"), rewards.mean()

    params = {"hidden": on(mesh, (D, F)), "action": on(mesh, (F, ACTIONS))}
    args = params, key(mesh), on(mesh, (ENVS, D), "env")
    return step, args, {"carry": 3}


# The environments are played without an exchange. Over all: the mean of the returns and
# of the rewards, 1 + 1, and the gradients, 4·64 + 64·3 = 448.
EXCHANGES = {("all-reduce", ("env",), 1): (448 + 2) * FLOAT}
FINDINGS = set()
