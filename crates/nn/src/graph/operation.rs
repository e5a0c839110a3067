//! Operations with any number of sources and outputs.
//!
//! candle's have at most three arguments and one result. So an operation is a *link*, a scalar that depends on its sources, and
//! each output depends on the link. More than three sources take a chain of links. In the backward pass the outputs come first,
//! which leave their gradients at the last link, and then the links from the last to the first.
//!
//! A source that is an output of another operation, or a view of one, is left out: the link depends on that operation's link, and
//! hands the gradient on without candle.

use std::sync::{Arc, OnceLock};

use candle_core::{Result, Tensor};

use super::gradient::Gradient;
use super::mailbox::{Mail, Mailbox};
use super::node::node;
use super::origin::{Origin, View};
use super::pass::keep;

/// candle's operations have at most this many arguments.
const MOST: usize = 3;

/// Given the gradients of the outputs and the outputs that are kept, returns a gradient for each source; missing ones are zeros.
pub type HandBack = Box<dyn Fn(Mail, &[Tensor]) -> Result<Mail> + Send + Sync>;

/// Makes `outputs` a function of `sources`, which all lead to Vars.
///
/// The graph keeps what the closure holds and, with `keeps_outputs`, the outputs, which the closure is given detached. Their storages are
/// moved: no other tensor may share them. Outputs of integers are returned as they are.
pub fn operation(
    name: &'static str,
    sources: &[&Tensor],
    outputs: Vec<Tensor>,
    keeps_outputs: bool,
    backward: HandBack,
) -> Result<Vec<Tensor>> {
    let kept = Arc::new(OnceLock::<Vec<Tensor>>::new());
    let known = Arc::clone(&kept);
    let hand_on = move |mail| backward(mail, known.get().map_or(&[], Vec::as_slice));
    let last = link(name, sources, Box::new(hand_on))?;
    let outputs = outputs.into_iter().enumerate();
    let outputs = outputs.map(|(place, output)| match output.dtype().is_float() {
        true => Origin::record(name, &last.scalar, &last.mailbox, place, output),
        false => Ok(output),
    });
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    if keeps_outputs {
        kept.get_or_init(|| outputs.iter().map(Tensor::detach).collect());
    }
    Ok(outputs)
}

/// What hands gradients on.
type HandOn = Box<dyn Fn(Mail) -> Result<Mail> + Send + Sync>;

/// An operation in candle's graph, and where it receives gradients.
struct Link {
    scalar: Tensor,
    mailbox: Arc<Mailbox>,
}

/// Where a link hands gradients on.
enum To {
    /// To candle.
    Argument,
    /// To the operation that the source is an output of, or a view of one.
    Origin(Arc<Mailbox>, usize, View),
    /// To the link before, which does it for this many sources.
    Sources(Arc<Mailbox>, usize),
}

/// Links sources. `backward` returns a gradient for each of them.
fn link(name: &'static str, sources: &[&Tensor], backward: HandOn) -> Result<Link> {
    let (before, sources) = match sources.len() > MOST {
        true => sources.split_at(sources.len() - (MOST - 1)),
        false => (&[][..], sources),
    };
    let (mut arguments, mut ways) = (Vec::new(), Vec::new());
    if !before.is_empty() {
        let Link { scalar, mailbox } = link(name, before, Box::new(Ok))?;
        arguments.push(scalar);
        ways.push(To::Sources(mailbox, before.len()));
    }
    for &source in sources {
        let (argument, to) = match Origin::of(source) {
            Some((origin, view)) => {
                let to = To::Origin(Arc::clone(&origin.mailbox), origin.place, view);
                (origin.link.clone(), to)
            }
            None => (source.clone(), To::Argument),
        };
        arguments.push(argument);
        ways.push(to);
    }
    let mailbox = Arc::<Mailbox>::default();
    let received = Arc::clone(&mailbox);
    let scalar = node(name, &arguments, None, move |arguments, link, _| {
        let mut gradients = backward(received.take()?)?.into_iter();
        let ways = ways.iter().zip(arguments);
        ways.map(|(to, argument)| to.hand_on(link, argument, &mut gradients))
            .collect()
    })?;
    Ok(Link { scalar, mailbox })
}

impl To {
    /// Takes what belongs here, and returns what candle takes as the gradient of the argument of `link`.
    fn hand_on(
        &self,
        link: &Tensor,
        argument: &Tensor,
        gradients: &mut impl Iterator<Item = Option<Gradient>>,
    ) -> Result<Option<Tensor>> {
        match self {
            Self::Argument => match gradients.next().flatten() {
                Some(gradient) => keep(link, argument, gradient),
                None => Ok(Some(argument.zeros_like()?)),
            },
            Self::Origin(mailbox, place, view) => {
                let gradient = gradients.next().flatten();
                let whole = gradient.map(|gradient| view.back(gradient)).transpose()?;
                mailbox.leave(argument, whole.map(|gradient| (*place, gradient)))
            }
            Self::Sources(mailbox, count) => {
                let gradients = gradients.take(*count).enumerate();
                mailbox.leave(
                    argument,
                    gradients.filter_map(|(place, gradient)| Some((place, gradient?))),
                )
            }
        }
    }
}
