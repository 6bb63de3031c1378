"""Chinese words of numbers: amounts, digits one by one, places in a row; and patterns that know both scripts. Pure."""

from __future__ import annotations

import re

_DIGITS = "零一二三四五六七八九"
_STEPS = ((10**8, "亿"), (10**4, "万"), (1000, "千"), (100, "百"), (10, "十"))
_MOST_DIGITS = 16
_TRADITIONAL = dict(
    zip(
        "验证码邮编号电话热线账帐单学订护车牌机区间门楼层栋弄航班号动态个张条辆台场种样类项双对岁周点块万亿页颗级线"
        "时钟届两战胜击败负领先赢输决赛总分温气达为约图项长征东风红旗龙轮节财后产财录发货币园尾转拨专选组团队级只间余",
        "驗證碼郵編號電話熱線賬帳單學訂護車牌機區間門樓層棟弄航班號動態個張條輛臺場種樣類項雙對歲週點塊萬億頁顆級線"
        "時鐘屆兩戰勝擊敗負領先贏輸決賽總分溫氣達為約圖項長徵東風紅旗龍輪節財後產財錄發貨幣園尾轉撥專選組團隊級隻間餘",
        strict=True,
    )
)


def han(words: str) -> str:
    """Return a pattern that matches any of the words, in simplified and in traditional characters.

    Args:
        words: parted by blanks.
    """
    return "|".join("".join(map(_either, word)) for word in sorted(words.split(), key=len, reverse=True))


def _either(character: str) -> str:
    traditional = _TRADITIONAL.get(character, character)
    return re.escape(character) if traditional == character else f"[{character}{traditional}]"


def digits(written: str, one: str = "一") -> str:
    """Return the digits one by one; other characters stay.

    Args:
        written: digits and what stands between them.
        one: the word of 1: 幺 where digits are called out, as in telephone numbers.
    """
    return "".join(one if each == "1" else _DIGITS[int(each)] if each.isdecimal() else each for each in written)


def called(written: str) -> str:
    """Return digits as they are called out, one by one with 幺 for 1."""
    return digits(written, "幺")


def cardinal(written: str) -> str:
    """Return the words of a whole number, group commas allowed; one by one if it is too long or begins with 0."""
    plain = written.replace(",", "")
    if len(plain) > _MOST_DIGITS or (len(plain) > 1 and plain[0] == "0"):
        return digits(plain)
    words = _read(int(plain))
    if words.startswith("一十"):
        return words[1:]
    return "两" + words[1:] if re.match("二[百千万亿]", words) else words


def _read(number: int) -> str:
    for value, name in _STEPS:
        if number >= value:
            high, low = divmod(number, value)
            gap = "零" if 0 < low < value // 10 else ""
            return _read(high) + name + (gap + _read(low) if low else "")
    return _DIGITS[number]


def number(written: str) -> str:
    """Return the words of a whole number or a decimal, maybe with a sign before it."""
    sign = {"-": "负", "−": "负", "+": "正", "±": "正负"}.get(written[:1], "")
    whole, _, fraction = written[bool(sign) :].partition(".")
    return sign + cardinal(whole or "0") + (f"点{digits(fraction)}" if fraction else "")


def counted(written: str) -> str:
    """Return an amount of what is counted or measured: 2 is 两."""
    return "两" if written == "2" else number(written)


def money(written: str) -> str:
    """Return an amount of money; zeros at the end of its fraction are not spoken."""
    return counted(written.rstrip("0").rstrip(".") if "." in written else written)


def ordinal(written: str) -> str:
    """Return the words of a place in a row, which are those of an amount but for 2 and 200."""
    return re.sub("^两百", "二百", cardinal(written))
