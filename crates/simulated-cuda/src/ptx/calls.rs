//! Calls of functions. A function's code is in the kernel once, and its parameters and results have their own registers.

use super::decode::Decoder;
use super::opcode::Opcode;
use super::operand::Operand;
use super::registers::Slot;
use super::scopes::Symbol;
use super::steps::copy;
use super::token::tokens;
use super::types::Type;
use super::warp::Action;

/// A decoded function.
#[derive(Clone, Debug)]
pub struct Callee {
    start: usize,
    back: Slot,
    /// The variables of its parameters and results.
    params: Vec<usize>,
    returns: Vec<usize>,
}

impl<'m> Decoder<'m> {
    /// The register of the value at an offset of a parameter variable.
    pub fn place(&mut self, id: usize, offset: i64, bytes: usize) -> Result<Slot, String> {
        if let Some((slot, known)) = self.places.get(&(id, offset)) {
            return match *known == bytes {
                true => Ok(*slot),
                false => Err("a parameter accessed with different widths".to_owned()),
            };
        }
        let slot = self.scratch(Type::bits(bytes));
        self.places.insert((id, offset), (slot, bytes));
        Ok(slot)
    }

    /// Decodes the functions that a body calls, so that they come before it.
    pub fn callees(&mut self, body: &'m str) -> Result<(), String> {
        let words = tokens(body);
        for (index, word) in words.iter().enumerate() {
            if !(*word == "call" || word.starts_with("call.")) {
                continue;
            }
            let end = words[index..]
                .iter()
                .position(|word| *word == ";")
                .map_or(words.len(), |n| index + n);
            for name in &words[index + 1..end] {
                if self.module.has_function(name) {
                    self.function(name)?;
                }
            }
        }
        Ok(())
    }

    fn function(&mut self, name: &'m str) -> Result<(), String> {
        match self.functions.get(name) {
            Some(Some(_)) => return Ok(()),
            Some(None) => return Err(format!("{name} calls itself")),
            None => {}
        }
        self.functions.insert(name.to_owned(), None);
        let signature = self.module.function(name)?;
        self.callees(signature.body)?;
        let scope = self.scopes.switch(None);
        self.scopes.open();
        let mut variables = [Vec::new(), Vec::new()];
        for (list, variables) in [&signature.params, &signature.returns]
            .into_iter()
            .zip(&mut variables)
        {
            for (name, _) in list {
                self.params += 1;
                variables.push(self.params);
                self.scopes.declare(name, Symbol::Param(self.params))?;
            }
        }
        let back = self.scratch(Type::U32);
        let outer = self.back.replace(back);
        let start = self.code.len();
        self.body(signature.body)
            .map_err(|error| format!("function {name}: {error}"))?;
        self.emit(Action::Return(back));
        self.back = outer;
        self.scopes.switch(scope);
        let [params, returns] = variables;
        self.functions.insert(
            name.to_owned(),
            Some(Callee {
                start,
                back,
                params,
                returns,
            }),
        );
        Ok(())
    }

    /// The values stored in a parameter variable: offset, register, bytes.
    fn stored(&self, id: usize) -> Vec<(i64, Slot, usize)> {
        let here = self.places.iter().filter(|((known, _), _)| *known == id);
        here.map(|((_, offset), (slot, bytes))| (*offset, *slot, *bytes))
            .collect()
    }
}

/// Decodes `call`.
pub fn decode<'m>(
    decoder: &mut Decoder<'m>,
    op: &Opcode,
    operands: &[Operand<'m>],
) -> Result<(), String> {
    op.allow(&["uni"])?;
    let (returns, rest) = match operands {
        [Operand::List(returns), rest @ ..] => (returns.as_slice(), rest),
        rest => (&[][..], rest),
    };
    let (name, params) = match rest {
        [Operand::Word { text, .. }, Operand::List(params)] => (*text, params.as_slice()),
        [Operand::Word { text, .. }] => (*text, &[][..]),
        _ => return Err("a call of an unknown form".to_owned()),
    };
    let returns = variables(decoder, returns)?;
    let params = variables(decoder, params)?;
    match name {
        "__assertfail" => {
            let [message, file, line, function, ..] = params[..] else {
                return Err("parameters are missing".to_owned());
            };
            let mut slots = [Slot(0); 4];
            for (slot, (id, bytes)) in
                slots
                    .iter_mut()
                    .zip([(message, 8), (file, 8), (line, 4), (function, 8)])
            {
                *slot = decoder.place(id, 0, bytes)?;
            }
            decoder.emit(Action::Assert(slots));
            return Ok(());
        }
        // `vprintf`: prints nothing, and returns that it printed no arguments.
        "vprintf" => {
            let zero = decoder.layout.constant(0, 4);
            for id in returns {
                let slot = decoder.place(id, 0, 4)?;
                decoder.step(copy([slot, zero], 4));
            }
            return Ok(());
        }
        _ => {}
    }
    let callee = decoder
        .functions
        .get(name)
        .cloned()
        .flatten()
        .ok_or_else(|| format!("unknown function {name}"))?;
    if params.len() != callee.params.len() || returns.len() != callee.returns.len() {
        return Err("a wrong number of parameters".to_owned());
    }
    for (ours, theirs) in params.iter().zip(&callee.params) {
        for (offset, slot, bytes) in decoder.stored(*ours) {
            let place = decoder.place(*theirs, offset, bytes)?;
            decoder.step(copy([place, slot], bytes));
        }
    }
    decoder.emit(Action::Call(callee.start, callee.back));
    for (ours, theirs) in returns.iter().zip(&callee.returns) {
        for (offset, slot, bytes) in decoder.stored(*theirs) {
            let place = decoder.place(*ours, offset, bytes)?;
            decoder.step(copy([place, slot], bytes));
        }
    }
    Ok(())
}

fn variables<'m>(
    decoder: &mut Decoder<'m>,
    operands: &[Operand<'m>],
) -> Result<Vec<usize>, String> {
    let mut found = Vec::new();
    for operand in operands {
        match operand.name().and_then(|name| decoder.symbol(name)) {
            Some(Symbol::Param(id)) => found.push(id),
            _ => return Err("a parameter of an unknown form".to_owned()),
        }
    }
    Ok(found)
}
