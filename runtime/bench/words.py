"""Text for prompts: common English words in random order, from a seed.

Each word is one token in the vocabulary of the embedded model, with and without a space before it, so that there a text
of n words has n tokens.
"""

from __future__ import annotations

from random import Random

_TEXT = """
about action activity add after again against age agree air all allow almost along already also although always an and
animal any apple are area arm around art ask at attack away back bad bag bank be because bed been before begin best
better between big bird black blue boat body book box boy bread break bridge bright brother brown build building burn
business but buy by call can car case catch center chain chair change child choose circle city class clean clear clock
closed cloud coat cold college color come common community company consider continue control cook cool cost count
country course court create cross culture cup cut dark data day death decision deep develop development die difference
difficult director do doctor door down draw drive drop drug dry during each early earth east easy eat edge education
effect egg empty end energy engine enough enter even event every expect experience eye face fact fair fall false
family far farm fast father feel field figure fill film find finish fire first fish fix flat floor follow foot for
force forest form free friend from fruit full game gate get girl give glass go gold good government gray great green
ground group grow hair hand happy hard has hat have head health heart heavy help her here high him history hold home
hot hour house how human ice idea if image in include industry information interest iron is issue it job join jump
just keep key kill kind know lake land large late law lead leader learn leave legal let level life lift light like
line listen little live local lock long look lot love low machine make man many market matter may maybe mean measure
meat medical member metal might milk mind minute mix moment money month moon more most mother move movie music name
nation national natural near need never new news night no north now number of offer office official often oil old on
once one only open other others out over paper parent part party pass patient pay people perhaps period person phone
pick picture piece pipe place plan plane plant plate play player point policy poor position power practice president
price private problem product program project public pull push put question quiet quite rain raise rare rate rather
reach read real reason receive record red relationship remember remove report require research result return rice rich
right ring river road rock role room round run safe said salt sand save say school sea season see sell send sense
service set shape share sharp she ship shirt short show side sign simple since sing sit site sky sleep slow small snow
so social soft some someone sometimes son soon source south space square stand star start state stay step still stock
stone stop storm story street strong student study sugar suggest summer sun support system table take talk tax teacher
team tell test than that the their them then there these they thick thin thing think this though time to together too
tool town train travel tree true try turn two under understand until up use usually value very view visit voice wait
wake walk wall want war warm was wash watch water way we weak wear week were west wet what wheel when where which
while white who wide wife will win wind window wine wire wise with within without woman wood word work worker world
would write year yellow yet young your
"""
WORDS = _TEXT.split()


def text(random: Random, words: int) -> str:
    """So many words, drawn with replacement."""
    return " ".join(random.choices(WORDS, k=words))
