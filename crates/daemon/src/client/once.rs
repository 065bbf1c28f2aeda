//! Writes of a client that may be killed while it waits for an answer, and whose successor does them once.
//!
//! ```text
//!   client     notes the number ── sends ── sees the answer ── notes it ── takes it
//!   successor  asks for something else on the same connection: what was answered before that answer was done
//! ```
//!
//! The connection outlives the client, as somebody else has its socket open as well ([`bifolio_keeper::forks`]). The daemon does
//! what it is asked for on one connection in turn, so that nothing of the dead client is under way any more when its
//! successor is answered. If the daemon's server dies in the same moment, what it was at counts as not done.

use crate::protocol::{ToClient, ToServer, VERSION, decode_answer, encode_request};
use crate::socket::{MESSAGE_BYTES_MAX, Received, Socket};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// What is known of a write, part by part, by whoever outlives its client.
pub trait Once {
    /// Whether the next part was done before: asked of each part in its order.
    fn skips(&self) -> bool;

    /// The next part that was not is about to be sent under a number.
    fn sends(&self, number: u64);

    /// It was done, or it is not known to be. The answer is there as long as this has not returned.
    fn ended(&self, is_done: bool);
}

/// The number of what a successor asks, which is no client's.
const LAST: u64 = u64::MAX - 1;

/// How long the daemon may take for what a dead client has asked.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Waits until the daemon is at nothing any more that a dead client has asked by a connection, and tells `done` of each number
/// under which something was done whose answer is there still, before it takes the answer.
///
/// # Errors
/// The system's, where the connection has ended.
pub fn settle(connection: BorrowedFd<'_>, done: &mut dyn FnMut(u64)) -> io::Result<()> {
    let socket = Socket::of(connection.try_clone_to_owned()?);
    let ask = || socket.send(&encode_request(LAST, &ToServer::Hello { version: VERSION }), None);
    ask()?;
    let (begun, mut buffer) = (Instant::now(), vec![0; MESSAGE_BYTES_MAX]);
    loop {
        let left = TIME_MAX.checked_sub(begun.elapsed()).ok_or(io::ErrorKind::TimedOut)?;
        if !socket.wait(left.as_millis() as i32) {
            continue;
        }
        let seen = socket.peek(&mut buffer)?;
        match decode_answer(&buffer[..seen]) {
            Some((LAST, _)) => return Ok(()),
            Some((_, ToClient::Again)) => ask()?,
            // What is said unasked, or was refused.
            Some((0, _) | (_, ToClient::Failed { .. })) | None => {}
            Some((number, _)) => done(number),
        }
        if let Received::End = socket.receive(&mut buffer)? {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{decode_request, encode_answer};
    use bifolio_cache::service::Answer;
    use std::os::fd::AsFd;

    #[test]
    fn what_was_answered_before_the_last_answer_was_done() {
        let (ours, theirs) = Socket::pair().unwrap();
        let answer = |number, answer: &ToClient| theirs.send(&encode_answer(number, answer), None).unwrap();
        answer(7, &ToClient::Answered(Answer::Done));
        let failed = |detail: &str| bifolio_cache::Error::bad_use(detail.to_owned());
        answer(8, &ToClient::failed(&failed("no")));
        // The server was replaced, and knows of nothing that was asked before.
        answer(0, &ToClient::Again);
        let successor = std::thread::spawn({
            let ours = ours.duplicate().unwrap();
            move || {
                let mut done = vec![];
                settle(ours.as_fd(), &mut |number| done.push(number)).map(|()| done)
            }
        });
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        for _ in 0..2 {
            let Ok(Received::Message(len, _)) = theirs.receive(&mut buffer) else { panic!("it asks twice") };
            assert_eq!(decode_request(&buffer[..len]).unwrap().0, LAST);
        }
        answer(LAST, &ToClient::Welcome { version: VERSION, devices: vec![] });
        assert_eq!(successor.join().unwrap().unwrap(), [7]);
        drop(theirs);
        assert!(settle(ours.duplicate().unwrap().as_fd(), &mut |_| ()).is_err());
    }
}
