//! Strangers at the port where ranks meet: whatever they send, the ranks find each other.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::groups::{LONG, free_port, open};

/// The bytes of a greeting, and of the length after it.
const HEAD: usize = GREETING + 2;
const GREETING: usize = 16;

/// What rank 1 of three says when it joins: a greeting, the length, and JSON.
fn hello() -> Vec<u8> {
    let port = free_port();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let joins = thread::spawn(move || open(1, 3, port, Duration::from_secs(5)).map(drop));
    let mut said = vec![0; HEAD];
    let mut stream = loop {
        // On a busy machine a connection may end before anything is said.
        let (mut stream, _) = listener.accept().unwrap();
        if stream.read_exact(&mut said).is_ok() {
            break stream;
        }
    };
    let length = u16::from_le_bytes([said[GREETING], said[GREETING + 1]]);
    said.resize(HEAD + usize::from(length), 0);
    stream.read_exact(&mut said[HEAD..]).unwrap();
    assert!(said[HEAD..].starts_with(b"{"), "{said:?}");
    drop((stream, listener));
    assert!(joins.join().unwrap().is_err());
    said
}

/// Flips a bit, leaves out the end, repeats a part, or states another length or number.
fn changed(valid: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut said = valid.to_vec();
    for _ in 0..random.random_range(1..3) {
        let at = random.random_range(0..said.len());
        match random.random_range(0..5) {
            0 => said[at] ^= 1 << random.random_range(0..8),
            1 => said.truncate(at.max(1)),
            2 => {
                said.extend_from_within(at..);
                state_length(&mut said);
            }
            3 => {
                let length: u16 = random.random();
                state(&mut said, length >> random.random_range(0..16));
            }
            _ => {
                let numbers = ["18446744073709551615", "-1", "0", "1e999", "null", "[[[["];
                let number = numbers[random.random_range(0..numbers.len())];
                let digit = said.iter().skip(HEAD).position(u8::is_ascii_digit);
                let Some(digit) = digit.map(|digit| digit + HEAD) else {
                    continue;
                };
                said.splice(digit..=digit, number.bytes()).for_each(drop);
                state_length(&mut said);
            }
        }
    }
    said
}

fn state_length(said: &mut [u8]) {
    state(said, said.len().saturating_sub(HEAD) as u16);
}

/// States a length after the greeting.
fn state(said: &mut [u8], length: u16) {
    let places = said.iter_mut().skip(GREETING);
    places
        .zip(length.to_le_bytes())
        .for_each(|(to, from)| *to = from);
}

#[test]
fn whatever_strangers_send_the_ranks_find_each_other() {
    let (hello, port) = (hello(), free_port());
    let mut random = StdRng::seed_from_u64(28);
    thread::scope(|scope| {
        let first = scope.spawn(move || open(0, 3, port, LONG).unwrap());
        let connect = || loop {
            // Until rank 0 listens.
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => return stream,
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut slow = Vec::new();
        for number in 0..200 {
            let mut stream = connect();
            // Rank 0 may have closed the connection.
            let _ = stream.write_all(&changed(&hello, &mut random));
            match number % 20 {
                0 => slow.push(stream),
                _ => drop(stream.shutdown(Shutdown::Both)),
            }
        }
        drop(slow);
        let others = [1, 2].map(|rank| scope.spawn(move || open(rank, 3, port, LONG).unwrap()));
        let [one, two] = others.map(|other| other.join().unwrap());
        let groups = [first.join().unwrap(), one, two];
        thread::scope(|scope| {
            for group in &groups {
                scope.spawn(|| group.barrier().unwrap());
            }
        });
    });
}
